#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace anymesh {

namespace fs = std::filesystem;

// A folder of its own for each test, removed afterwards.
class TempFolder : public ::testing::Test {
 protected:
  TempFolder() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / ("anymesh_" + std::to_string(getpid()) + "_" +
                                           info->test_suite_name() + "_" + info->name());
    fs::create_directories(folder_);
  }
  ~TempFolder() override { fs::remove_all(folder_); }

  fs::path folder_;
};

}  // namespace anymesh
