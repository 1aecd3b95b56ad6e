#include "framework/config/parse.h"

#include "framework/config/command_line.h"
#include "framework/config/deepspeed_json.h"
#include "framework/config/require.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

// Replaces gloo by what stands for it here, and says where an offload moves nothing.
void note_devices(const FlagTable& flags, Config& config, std::vector<std::string>& notes) {
  if (std::string& backend = config.device.distributed_backend; backend == "gloo") {
    const bool threads = config.run.local_ranks > 0;
    backend = threads ? "" : "mpi";
    notes.push_back(flags.origin("distributed-backend") + ": here that is " +
                    (threads ? "memory" : "mpi"));
  }
  const OffloadConfig& offload = config.engine.zero.offload;
  for (const auto& [flag, device] : {std::pair("offload-optimizer", offload.optimizer),
                                     std::pair("offload-param", offload.param)})
    if (device == "cpu")
      notes.push_back(flags.origin(flag) +
                      ": this build trains in the host's memory, where that is already; nothing "
                      "moves");
}

}  // namespace

ParseResult parse(FlagTable& flags, Config& config, const std::vector<std::string>& args,
                  const std::function<void()>& more) {
  ParseResult result{.text = text_asked_for(flags, args)};
  if (!result.text.empty()) return result;

  const std::vector<std::string> ignored_flags = read_command_line(flags, args);
  if (!ignored_flags.empty()) {
    result.notes.push_back("ignored, as they change no result here: " + joined(ignored_flags));
  }
  if (const std::string& path = config.run.deepspeed_config; !path.empty()) {
    const std::vector<std::string> ignored_keys =
        read_deepspeed_json(path, flags, config, &result.notes);
    if (!ignored_keys.empty()) {
      result.notes.push_back("ignored keys of " + path +
                             ", as they change no result here: " + joined(ignored_keys));
    }
    if (!flags.given("clip-grad"))
      result.notes.push_back(
          path + " has no gradient_clipping: here --clip-grad 1 holds, as in Megatron and " +
          "DeepSpeed 0.19.8; older ones do not clip. --clip-grad 0 does not clip");
  }
  if (more) more();
  config.data.choose_tokenizer();
  require(config.run.local_ranks <= kMostLocalRanks, flags.origin("local-ranks"),
          ": expected at most ", kMostLocalRanks, " threads of one process; start more by mpirun");
  flags.check();
  note_devices(flags, config, result.notes);
  config.run.eval_given = flags.given("eval-iters") || flags.given("eval-interval");
  result.settings = flags.settings();
  return result;
}

}  // namespace anymesh
