// The extension module anymesh._core. The package in anymesh/ documents and completes it.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <sstream>

#include "framework/format/folder.h"
#include "framework/format/reshard.h"
#include "framework/util/errors.h"
#include "tools/ckpt/ckpt.h"
#include "tools/python/checkpoint.h"
#include "tools/python/job.h"
#include "tools/python/values.h"

// The tools, as run_tool.h's ANYMESH_MAIN begins them here.
int ckpt_main(int argc, char** argv);
int ds_reshard_main(int argc, char** argv);
int ds_to_universal_main(int argc, char** argv);
int hf_convert_main(int argc, char** argv);
int zero_to_fp32_main(int argc, char** argv);

namespace anymesh::python {
namespace {

namespace nb = nanobind;
namespace fs = std::filesystem;

// Raises the classes of anymesh/errors.py.
void translate(const std::exception_ptr& thrown, void*) {
  const auto raise = [](const char* type, const std::exception& error) {
    const nb::object made = nb::module_::import_("anymesh.errors").attr(type)(to_str(error.what()));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  };
  try {
    std::rethrow_exception(thrown);
  } catch (const UserError& error) {
    raise("UserError", error);
  } catch (const DamagedFile& error) {
    raise("DamagedFile", error);
  } catch (const Unreadable& error) {
    raise("Unreadable", error);
  } catch (const std::runtime_error& error) {  // of the system: a full disk, no permission
    raise("SystemFailure", error);
  }
}

// The folders on the way to `path`, itself included, that are not there yet. remove() removes those
// that are there by then and empty.
class NewFolders {
 public:
  explicit NewFolders(const fs::path& path) {
    for (fs::path folder = path; !folder.empty() && !fs::exists(folder);
         folder = folder.parent_path())
      made_.push_back(folder);
  }
  void remove() const {
    std::error_code not_empty;
    for (const fs::path& folder : made_)
      if (fs::is_directory(folder)) fs::remove(folder, not_empty);
  }

 private:
  std::vector<fs::path> made_;  // the deepest first
};

// Runs work that writes to `output`, by way of the folder `build`. If Python stops it, removes the
// half of the output that is there.
template <class Work>
auto run_writer(const Listener& listener, const fs::path& output, const fs::path& build,
                Work work) {
  const NewFolders made(output);
  try {
    return Job(listener).run(std::move(work));
  } catch (const nb::python_error&) {
    remove_build_folder(build);
    made.remove();
    throw;
  }
}

nb::list reshard_for_python(const nb::str& source, const nb::str& output, const std::string& target,
                            int threads, bool assume_module_order, const Listener& listener) {
  ReshardOptions options{.input = to_bytes(source),
                         .output = without_trailing_slash(to_bytes(output)),
                         .target = ReshardTarget::parse(target),
                         .assume_module_order = assume_module_order};
  if (threads > 0) options.threads = threads;
  const auto report =
      run_writer(listener, options.output, temporary_of(options.output),
                 [&](const ProgressCallback& progress) { return reshard(options, progress); });
  return to_list(report.notes);
}

nb::list to_universal(const nb::str& source, const nb::str& output, int threads,
                      const Listener& listener) {
  ConvertOptions options{.input = to_bytes(source),
                         .output = without_trailing_slash(to_bytes(output))};
  if (threads > 0) options.write_workers = threads;
  const auto report = run_writer(
      listener, options.output, temporary_of(options.output),
      [&](const ProgressCallback& progress) { return convert_to_universal(options, progress); });
  return to_list(report.warnings);
}

nb::list to_fp32(const nb::str& source, const nb::str& output, const std::string& dtype,
                 bool safetensors, const std::string& max_shard_size, bool exclude_frozen,
                 bool overwrite, const Listener& listener) {
  Fp32Options options{.checkpoint = to_bytes(source),
                      .output = without_trailing_slash(to_bytes(output)),
                      .max_shard_size = parse_size(max_shard_size),
                      .safetensors = safetensors,
                      .exclude_frozen = exclude_frozen,
                      .overwrite = overwrite};
  if (!dtype.empty()) options.dtype = parse_output_dtype(dtype);
  const auto report =
      run_writer(listener, options.output, options.output / kWeightsBuildFolder,
                 [&](const ProgressCallback& progress) { return export_fp32(options, progress); });
  std::vector<std::string> notes = report.notes;
  if (!report.rounded.empty())
    notes.push_back("weights are the model's rounded ones where masters are unknown: " +
                    report.rounded);
  return to_list(notes);
}

// Returns the exit code and the text of a command of ckpt.
template <class Command>
nb::tuple run_command(int threads, const Listener& listener, const Command& command) {
  std::ostringstream out;
  const int code = Job(listener).run([&](const ProgressCallback& progress) {
    return command(CkptOptions{.workers = threads, .all = true, .progress = progress}, out);
  });
  return nb::make_tuple(code, to_str(out.str()));
}

nb::tuple verify(const nb::str& path, int threads, const Listener& listener) {
  const fs::path checkpoint = to_bytes(path);
  return run_command(threads, listener, [&](const CkptOptions& options, std::ostream& out) {
    return verify_checkpoint(checkpoint, options, out);
  });
}

nb::tuple diff(const nb::str& a, const nb::str& b, int threads, const Listener& listener) {
  const fs::path one = to_bytes(a), other = to_bytes(b);
  return run_command(threads, listener, [&](const CkptOptions& options, std::ostream& out) {
    return diff_checkpoints(one, other, options, out);
  });
}

nb::str resolve(const nb::str& path) {
  return to_str(resolve_tag(without_trailing_slash(to_bytes(path))).string());
}

// Runs a tool in this process, which belongs to it, with the words behind its name.
int run_tool(const std::string& name, const std::vector<nb::str>& words) {
  const std::pair<const char*, int (*)(int, char**)> tools[] = {
      {"ckpt", ckpt_main},
      {"ds_reshard", ds_reshard_main},
      {"ds_to_universal", ds_to_universal_main},
      {"hf_convert", hf_convert_main},
      {"zero_to_fp32", zero_to_fp32_main}};
  std::vector<std::string> texts = {name};
  for (const nb::str& word : words) texts.push_back(to_bytes(word));
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  const nb::gil_scoped_release released;
  for (const auto& [known, main] : tools)
    if (name == known) return main(static_cast<int>(texts.size()), argv.data());
  throw_error("no tool ", name);
}

}  // namespace
}  // namespace anymesh::python

NB_MODULE(_core, module) {
  using namespace anymesh::python;
  nanobind::register_exception_translator(translate);
  add_checkpoint(module);
  module.def("reshard", reshard_for_python);
  module.def("to_universal", to_universal);
  module.def("to_fp32", to_fp32);
  module.def("verify", verify);
  module.def("diff", diff);
  module.def("resolve_tag", resolve);
  module.def("run_tool", run_tool);
}
