#include "framework/format/reshard.h"
#include "framework/format/whole.h"
#include "framework/util/errors.h"
#include "framework/util/plain_words.h"
#include "tools/ckpt/ckpt.h"
#include "tools/progress_line.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

void print_written(const fs::path& folder, const std::string& what, const StreamReport& report,
                   const std::vector<std::string>& notes, std::ostream& out) {
  for (const std::string& note : notes) out << "note: " << printable_message(note) << '\n';
  const auto bytes = static_cast<double>(report.bytes);
  out << printable(folder.string(), 1000) << ": " << what << ": " << report.files << " files, "
      << size_text(bytes) << ' ' << pace(bytes, report.seconds) << '\n';
  if (report.kept > 0)
    out << size_text(report.kept) << " were there already, of a run that was interrupted\n";
}

}  // namespace

int convert_checkpoint(const fs::path& from, const fs::path& to, const ConvertRequest& request,
                       const CkptOptions& options, std::ostream& out) {
  if (request.to == "dcp") {
    const DcpReport report = export_dcp({.input = from,
                                         .output = to,
                                         .model_key = request.model_key,
                                         .optimizer_key = request.optimizer_key},
                                        options.progress);
    print_written(to,
                  "torch.distributed.checkpoint of " + std::to_string(report.tensors) + " tensors",
                  report, report.notes, out);
  } else if (request.to == "deepspeed") {
    const ReshardTarget target =
        request.target.empty() ? ReshardTarget() : ReshardTarget::parse(request.target);
    const ReshardReport report =
        reshard({.input = from, .output = to, .target = target}, options.progress);
    print_written(to, to_string(report.to), report, report.notes, out);
  } else if (request.to == "universal") {
    const ConvertReport report =
        convert_to_universal({.input = from, .output = to}, options.progress);
    print_written(to,
                  "universal checkpoint of " + std::to_string(report.parameters) + " parameters",
                  report, report.warnings, out);
  } else {
    throw UserError("--to: expected dcp, deepspeed or universal, found '" + printable(request.to) +
                    "'; zero_to_fp32 and hf_convert write weights for Hugging Face");
  }
  return kExitAllWell;
}

}  // namespace anymesh
