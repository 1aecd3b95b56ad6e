// Trains a GPT by Signum (arXiv:1802.04434), an optimizer that the framework does not have.
#include "framework/config/flags.h"
#include "models/gpt/gpt_definition.h"

namespace {

//   momentum_buffer = momentum * momentum_buffer + (1 - momentum) * g
//   w -= lr * (sign(momentum_buffer) + weight_decay * w)
class Signum final : public anymesh::Optimizer {
 public:
  std::string name() const override { return "Signum"; }
  std::vector<std::string> states() const override { return {"momentum_buffer"}; }
  void update(const Tensors& t, const Step& step) const override {
    const torch::Tensor& m = t.states[0];
    m.mul_(momentum_).add_(t.gradient * (1 - momentum_));
    t.weight.sub_((m.sign() + t.weight * step.weight_decay) * step.lr);
  }
  std::vector<Setting> settings() const override {
    return {{"momentum", momentum_, "--signum-momentum"}};
  }
  void add_flags(anymesh::FlagTable& flags) override {
    flags.add("signum-momentum", momentum_, "decay of the momentum", {.least = 0, .below = 1});
  }

 private:
  double momentum_ = 0.9;
};

}  // namespace

int main(int argc, char** argv) {
  return anymesh::pretrain(argc, argv,
                           {.name = "pretrain_signum",
                            .description = "Trains a GPT by Signum.",
                            .model = anymesh::make_model<anymesh::Gpt>,
                            .optimizer = [] { return std::make_shared<Signum>(); }});
}
