#include <cstdio>
#include <nlohmann/json.hpp>

#include "tests/tools/plots.h"

namespace anymesh {
namespace {

using Json = nlohmann::ordered_json;

const std::string kSmall =
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 256 "
    "--global-batch-size 16 ";

class PlanTest : public PlotTest {
 protected:
  Outcome plan(const std::string& flags) const { return run(std::string(PLAN) + " " + flags); }
  Json json(const std::string& flags) const {
    const Outcome outcome = plan(flags + " --json");
    EXPECT_EQ(outcome.err, "");
    return Json::parse(outcome.out);
  }
  // Returns the message of a command that is refused.
  std::string refusal(const std::string& flags) const {
    const Outcome outcome = plan(flags);
    EXPECT_EQ(outcome.status, 2) << outcome.out;
    return outcome.err;
  }
};

Json vectors() { return Json::parse(read_file(PLAN_VECTORS)); }

// tests/runs/plan.sh holds the same numbers against the trainer's reports.
TEST_F(PlanTest, HasTheNumbersThatTheTrainerReports) {
  const Json file = vectors();
  const char* const parts[] = {"parameters", "gradients", "optimizer state", "tied copies", "peak"};
  ASSERT_EQ(file["cases"].size(), 80u);
  for (const Json& item : file["cases"]) {
    const int gpus = item["gpus"];
    const std::string model = file["models"][item["model"].get<std::string>()], mesh = item["mesh"];
    int tp = 0, pp = 0, dp = 0, zero = 0, samples = 0;
    ASSERT_EQ(
        std::sscanf(mesh.c_str(), "tp%d-pp%d-dp%d-zero%d-b%d", &tp, &pp, &dp, &zero, &samples), 5);
    const std::string sizes = " --tensor-model-parallel-size " + std::to_string(tp) +
                              " --pipeline-model-parallel-size " + std::to_string(pp) +
                              " --micro-batch-size " + std::to_string(samples) + " --zero-stage " +
                              std::to_string(zero);
    const Json found = json(model + sizes + " --preset cpu --gpus " + std::to_string(gpus) +
                            " --global-batch-size " + std::to_string(4 * gpus) + " --explain " +
                            mesh)["meshes"][0];
    Json stages = Json::array();
    for (const Json& stage : found["stages"]) {
      Json own{{"first", stage["first"]}, {"memory", Json::array()}, {"traffic", Json::object()}};
      for (const char* part : parts) own["memory"].push_back(stage["memory"][part]);
      for (const Json& row : stage["traffic"])
        own["traffic"][row["group"].get<std::string>() + " " + row["verb"].get<std::string>()] = {
            row["calls"], row["bytes"]};
      stages.push_back(own);
    }
    EXPECT_EQ(stages, item["stages"]) << model << " on " << mesh;
  }
}

// docs/scaling.md has the table of 175B parameters on 1024 GPUs. Its stages have no head, and its
// dp no sum of the tied embedding.
TEST_F(PlanTest, HasTheTimesOfThePage) {
  const std::string flags =
      "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --vocab-size "
      "51200 --attention-dropout 0 --gpus 1024 --global-batch-size 1536 "
      "--tensor-model-parallel-size 8 "
      "--pipeline-model-parallel-size 8 --micro-batch-size 1 --zero-stage 1 ";
  const auto time = [&](const std::string& more) {
    return json(flags + more)["meshes"][0]["time"];
  };
  const Json a100 = time("--preset a100 --explain tp8-pp8-dp16-zero1-b1-recompute"),
             h100 = time("--preset h100 --explain tp8-pp8-dp16-zero1-b1");
  const auto near = [](const Json& part, double seconds) {
    EXPECT_NEAR(part.get<double>(), seconds, 0.12 * seconds);
  };
  near(a100["products"], 23.53);
  near(a100["tp"], 2.54);
  near(a100["bubble"], 1.94);
  near(a100["dp"], 0.77);
  near(h100["products"], 5.57);
  near(h100["tp"], 1.13);
  near(h100["bubble"], 0.51);
  near(h100["dp"], 0.38);
}

TEST_F(PlanTest, RanksAllLegalMeshesAndPrintsFlags) {
  const Json all = json(kSmall + "--gpus 4 --preset cpu --top 0");
  EXPECT_EQ(all["legal"], all["meshes"].size());
  double before = 0;
  for (const Json& mesh : all["meshes"]) {
    EXPECT_EQ(mesh["tp"].get<int>() * mesh["pp"].get<int>() * mesh["dp"].get<int>(), 4);
    EXPECT_GE(mesh["step"], before);
    before = mesh["step"];
  }
  const Outcome text = plan(kSmall + "--gpus 4 --preset cpu --top 1 --lr 1e-3 --mock-data");
  EXPECT_EQ(text.status, 0);
  EXPECT_THAT(text.out, HasSubstr("MFU"));
  EXPECT_THAT(text.out, HasSubstr("pretrain_gpt --"));
  EXPECT_THAT(text.out, HasSubstr(all["meshes"][0]["flags"].get<std::string>()));
  EXPECT_THAT(text.out, HasSubstr("(add --train-iters)"));
}

TEST_F(PlanTest, KeepsTheSizesThatFlagsGive) {
  const Json pinned = json(kSmall +
                           "--gpus 4 --preset cpu --top 0 --zero-stage 0 "
                           "--tensor-model-parallel-size 2 --activation-checkpointing");
  for (const Json& mesh : pinned["meshes"]) {
    EXPECT_EQ(mesh["tp"], 2);
    EXPECT_EQ(mesh["zero"], 0);
    EXPECT_EQ(mesh["recompute"], true);
  }
}

TEST_F(PlanTest, ExplainsTheSum) {
  const Outcome outcome = plan(kSmall + "--gpus 2 --preset cpu --explain tp2-pp1-dp1-zero0-b1");
  EXPECT_EQ(outcome.status, 0);
  for (const char* part : {"optimizer state", "activations would take", "all_reduce", "products"})
    EXPECT_THAT(outcome.out, HasSubstr(part));
}

TEST_F(PlanTest, MakesAModelOfASizeOrOfAConfig) {
  const Json sized = json("--params 7B --gpus 64 --preset h100 --top 1");
  EXPECT_NEAR(sized["parameters"].get<double>(), 7e9, 0.7e9);
  const std::string config = write("config.json", R"({"model_type":"llama","hidden_size":64,
    "intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":4,"vocab_size":100,
    "max_position_embeddings":64})");
  const Json llama = json(
      "--hf-config @config.json --seq-length 32 --gpus 2 --preset cpu "
      "--global-batch-size 8 --top 1");
  EXPECT_THAT(llama["command"].get<std::string>(), HasSubstr("--swiglu"));
  EXPECT_EQ(llama["parameters"], 2 * 100 * 64 + 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64));
}

TEST_F(PlanTest, SaysThatNoneFits) {
  const Outcome outcome = plan("--params 7B --gpus 1 --preset h100");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, HasSubstr("None fits. The least memory has:"));
}

TEST_F(PlanTest, RefusesWhatItCannotReckon) {
  EXPECT_THAT(refusal(kSmall + "--gpus 2"), HasSubstr("--memory is missing"));
  EXPECT_THAT(refusal(kSmall + "--preset cpu"), HasSubstr("--gpus (0) is required"));
  EXPECT_THAT(refusal("--params 7Q --gpus 8 --preset h100"), HasSubstr("--params (7Q): expected"));
  EXPECT_THAT(refusal(kSmall + "--gpus 2 --preset cpu --optimizer muon"),
              HasSubstr("--optimizer muon: plan knows the traffic of"));
  EXPECT_THAT(refusal(kSmall + "--gpus 2 --preset cpu --lora-rank 2"),
              HasSubstr("--lora-rank 2: plan reckons with all"));
  EXPECT_THAT(refusal(kSmall + "--gpus 2 --preset cpu --tensor-model-parallel-size 3"),
              HasSubstr("no mesh of --gpus (2) is legal; the last one that was tried: "));
  EXPECT_THAT(refusal(kSmall + "--gpus 2 --preset cpu --nvlnk 3"), HasSubstr("--nvlink"));
  EXPECT_THAT(refusal("--params 7B --gpus 2 --preset h100 --hidden-size 100000000"),
              HasSubstr("is too large to reckon with"));
  EXPECT_THAT(refusal("--measure --gpus 2 --trainer @none"), HasSubstr("there is no"));
  EXPECT_EQ(plan(kSmall + "--gpus 2 --preset cpu --explain tp3").status, 2);
}

}  // namespace
}  // namespace anymesh
