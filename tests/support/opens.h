#pragma once

#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <map>
#include <string>

namespace anymesh {

// Counts how often each file of a folder is opened during its life.
class Opens {
 public:
  explicit Opens(const std::filesystem::path& folder) : queue_(inotify_init1(IN_NONBLOCK)) {
    inotify_add_watch(queue_, folder.c_str(), IN_OPEN);
  }
  ~Opens() { close(queue_); }
  Opens(const Opens&) = delete;
  Opens& operator=(const Opens&) = delete;

  std::map<std::string, int> counts() const {
    std::map<std::string, int> counts;
    alignas(inotify_event) std::array<char, 1 << 16> events;
    for (ssize_t size; (size = read(queue_, events.data(), events.size())) > 0;) {
      for (ssize_t at = 0; at < size;) {
        const auto* event =
            reinterpret_cast<const inotify_event*>(&events[static_cast<size_t>(at)]);
        if (event->len > 0) ++counts[event->name];
        at += static_cast<ssize_t>(sizeof *event + event->len);
      }
    }
    return counts;
  }

 private:
  int queue_;
};

}  // namespace anymesh
