#include "framework/run/launch.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

#include "framework/comm/agreement.h"
#include "framework/comm/mpi_job.h"
#include "framework/run/stop_request.h"
#include "framework/util/format.h"
#include "framework/util/parse_number.h"
#include "framework/util/plain_words.h"
#include "framework/util/printable.h"
#include "framework/util/terminal.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Returns the value of `name` in the text of /proc/PID/environ.
std::string value_in(const std::string& environ, const std::string& name) {
  for (size_t at = 0; at < environ.size(); at += std::strlen(environ.c_str() + at) + 1) {
    const std::string_view entry = environ.c_str() + at;
    if (entry.starts_with(name + "=")) return std::string(entry.substr(name.size() + 1));
  }
  return "";
}

// Returns the programs of this job's ranks on this machine. A rank may be a script and its
// children; then the one that runs this process's program counts.
std::map<int, std::string> programs_of_ranks(const std::string& mine) {
  std::map<int, std::string> programs;
  std::error_code ignored;
  for (const fs::directory_entry& process : fs::directory_iterator("/proc", ignored)) {
    std::ifstream file(process.path() / "environ", std::ios::binary);
    const std::string environ{std::istreambuf_iterator<char>(file), {}};
    if (value_in(environ, "PMIX_NAMESPACE") != environment("PMIX_NAMESPACE")) continue;
    const auto rank = parse_number<int>(value_in(environ, "PMIX_RANK"));
    const std::string program = fs::read_symlink(process.path() / "exe", ignored);
    if (!rank || program.empty()) continue;
    std::string& known = programs[*rank];
    if (known != mine) known = program;
  }
  return programs;
}

// Returns, for example, "rank 1 runs /usr/bin/sleep, rank 2 has ended".
std::string describe_missing(const std::map<int, std::string>& programs, const std::string& mine) {
  std::string text;
  const auto add = [&text](int rank, const std::string& what) {
    text += c10::str(text.empty() ? "" : ", ", "rank ", rank, what);
  };
  const auto size = parse_number<int>(environment("OMPI_COMM_WORLD_SIZE"));
  const bool all_here =
      size && environment("OMPI_COMM_WORLD_LOCAL_SIZE") == environment("OMPI_COMM_WORLD_SIZE");
  for (int rank = 0; all_here && rank < *size; ++rank)
    if (!programs.contains(rank)) add(rank, " has ended");
  for (const auto& [rank, program] : programs)
    if (program != mine) add(rank, " runs " + program);
  if (!text.empty()) return text;
  return all_here ? "one is stopped, or is late"
                  : "one on another machine is stopped, has ended, or runs something else";
}

// The first rank on each machine that runs this program prints the message. The others print it
// only if they still live 5 s later.
void end_the_start(const std::string& program, std::chrono::seconds patience) {
  std::error_code ignored;
  const std::string mine = fs::read_symlink("/proc/self/exe", ignored);
  const std::map<int, std::string> programs = programs_of_ranks(mine);
  const auto first =
      std::ranges::find(programs, mine, &std::map<int, std::string>::value_type::second);
  const std::string rank = environment("PMIX_RANK");
  if (first != programs.end() && std::to_string(first->first) != rank)
    std::this_thread::sleep_for(std::chrono::seconds(5));
  std::fprintf(stderr,
               "%s: [rank %s] not all ranks have come to MPI_Init within %lld s "
               "(--distributed-timeout-minutes): %s; all ranks must run %s\n",
               program.c_str(), rank.c_str(), static_cast<long long>(patience.count()),
               describe_missing(programs, mine).c_str(), program.c_str());
  abort_quietly(1);
  std::_Exit(1);
}

std::string in_red(const std::string& program) { return coloured(Colour::kRed, program, stderr); }

// Returns rank 0's text on all ranks.
std::string first_ranks_text(Communicator& world, const std::string& mine) {
  torch::Tensor size = torch::full({1}, static_cast<int64_t>(mine.size()), torch::kLong);
  world.broadcast(size, 0);
  torch::Tensor bytes = torch::empty({size.item<int64_t>()}, torch::kByte);
  if (world.rank() == 0) std::ranges::copy(mine, static_cast<char*>(bytes.data_ptr()));
  world.broadcast(bytes, 0);
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

// Called when all ranks have the same error. The first of them prints it and ends the job.
[[noreturn]] void end_together(const std::string& program, const Job& job,
                               const std::string& error) {
  const CommPtr world = job.world();
  const std::vector<int> absent = world->roll_call(std::chrono::seconds(2));
  const bool first = world->rank() == 0 || (!absent.empty() && absent[0] == 0);
  if (!first) HeldSignals::await_end(std::chrono::seconds(10));
  if (first) std::fprintf(stderr, "%s: %s\n", in_red(program).c_str(), error.c_str());
  job.abort(1);
}

}  // namespace

StartWatch::StartWatch(std::string program, std::chrono::seconds patience) {
  if (environment("PMIX_RANK").empty()) return;
  thread_ = std::jthread([program = std::move(program), patience](const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any changed;
    changed.wait_for(lock, stop, patience, [] { return false; });
    if (!stop.stop_requested()) end_the_start(program, patience);
  });
}

void meet(Communicator& world, std::chrono::seconds patience) {
  const std::vector<int> absent = world.roll_call(patience);
  if (absent.empty()) return;
  std::string ranks;
  for (const int rank : absent) ranks += c10::str(ranks.empty() ? "" : ", ", rank);
  throw CollectiveError(c10::str(absent.size() == 1 ? "rank " : "ranks ", ranks, " of ",
                                 world.size(), " did not come to the start within ",
                                 patience.count(), " s (--distributed-timeout-minutes): stopped, ",
                                 "or another program"));
}

void check_same(Communicator& world, const Facts& mine) {
  std::string text;
  for (const auto& [name, value] : mine) text.append(name + '\0').append(value + '\0');
  std::istringstream first(first_ranks_text(world, text));
  std::string difference, first_name, first_value;
  for (const auto& [name, value] : mine) {
    std::getline(first, first_name, '\0');
    std::getline(first, first_value, '\0');
    if (name == first_name && value == first_value) continue;
    difference =
        c10::str(name, " is ", printable(value), ", but on rank 0 ", first_name, " is ",
                 printable(first_value), "; start all ranks with one program and the same flags");
    break;
  }
  throw_together(world, difference);
}

void end_job(const std::string& program, const Job& job) {
  std::string error;
  try {
    throw;
  } catch (const CollectiveError& collective) {
    end_together(program, job, printable_message(collective));
  } catch (const c10::Error& e) {
    error = plain_words(e.what_without_backtrace());
  } catch (const std::exception& e) {
    error = printable_message(e);
  }
  std::fprintf(stderr, "%s: [rank %d] %s\n", in_red(program).c_str(), job.world()->rank(),
               error.c_str());
  job.abort(1);
}

std::string build_id() {
  std::string id;
  const auto find = [](dl_phdr_info* object, size_t, void* found) {
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const ElfW(Phdr)& segment = object->dlpi_phdr[i];
      const auto* at = reinterpret_cast<const char*>(object->dlpi_addr + segment.p_vaddr);
      for (const char* end = at + segment.p_memsz; segment.p_type == PT_NOTE && at < end;) {
        const auto& note = *reinterpret_cast<const ElfW(Nhdr)*>(at);
        const char* data = at + sizeof note + (note.n_namesz + 3) / 4 * 4;
        if (note.n_type == NT_GNU_BUILD_ID)
          for (const char* byte = data; byte < data + note.n_descsz; ++byte)
            *static_cast<std::string*>(found) += string_printf("%02x", static_cast<uint8_t>(*byte));
        at = data + (note.n_descsz + 3) / 4 * 4;
      }
    }
    return 1;  // the first object is the program
  };
  dl_iterate_phdr(find, &id);
  return id;
}

}  // namespace anymesh
