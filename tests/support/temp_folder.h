#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace anymesh {

// A folder of its own for each test, removed afterwards.
class TempFolder : public ::testing::Test {
 protected:
  TempFolder() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        std::filesystem::temp_directory_path() / ("anymesh_" + std::to_string(getpid()) + "_" +
                                                  info->test_suite_name() + "_" + info->name());
    std::filesystem::create_directories(folder_);
  }
  ~TempFolder() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

}  // namespace anymesh
