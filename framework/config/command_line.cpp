#include "framework/config/command_line.h"

#include <algorithm>
#include <cxxopts.hpp>
#include <map>
#include <numeric>
#include <string_view>

#include "framework/config/config.h"
#include "framework/config/foreign_flags.h"

namespace anymesh {
namespace {

std::string value_name(const FlagTable::Field& field) {
  if (std::holds_alternative<bool*>(field)) return "";
  if (std::holds_alternative<std::string*>(field)) return "TEXT";
  if (std::holds_alternative<std::vector<std::string>*>(field)) return "TEXT...";
  const bool is_real = std::holds_alternative<double*>(field) ||
                       std::holds_alternative<std::optional<double>*>(field);
  return is_real ? "X" : "N";
}

// Every value is text to cxxopts, which stops reading "1e-3x" at the x; FlagTable::set() doesn't.
std::shared_ptr<cxxopts::Value> value_of(bool takes_value) {
  return takes_value ? cxxopts::value<std::string>() : cxxopts::value<bool>();
}

cxxopts::Options make_options(const FlagTable& flags) {
  cxxopts::Options options(flags.program(), flags.description());
  options.set_width(100).allow_unrecognised_options().custom_help(
      "[--flag value | --flag=value]...");
  for (const FlagTable::Flag& flag : flags.flags()) {
    const bool required = flag.default_text == "required";
    const std::string help =
        flag.help + (required ? " (required)" : " (default: " + flag.default_text + ")");
    const std::string value = value_name(flag.field);
    options.add_option(flag.group, "", flag.name, help, value_of(!value.empty()), value);
  }
  for (const ForeignFlag& flag : foreign_flags())
    options.add_option("Megatron-DeepSpeed", "", std::string(flag.name), "",
                       value_of(flag.takes_value), "");
  options.add_options("Help")("help", "this text")("version", "the version");
  return options;
}

bool is_flag(const std::string& arg) { return arg.rfind("--", 0) == 0 && arg.size() > 2; }

std::string flag_name(const std::string& arg) { return arg.substr(2, arg.find('=') - 2); }

bool is_switch(const FlagTable& flags, const std::string& name) {
  if (name == "help" || name == "version") return true;
  if (const FlagTable::Flag* flag = flags.find(name)) {
    return std::holds_alternative<bool*>(flag->field);
  }
  const ForeignFlag* foreign = find_foreign_flag(name);
  return foreign && !foreign->takes_value;
}

// What cxxopts has no notion of: "--data-path a b c", set here and left out of the answer. Switches
// with a value are refused here, as cxxopts would not name them.
std::vector<std::string> take_lists(FlagTable& flags, const std::vector<std::string>& args) {
  std::vector<std::string> others;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string name = is_flag(args[i]) ? flag_name(args[i]) : "";
    const size_t equals = args[i].find('=');
    if (equals != std::string::npos && is_switch(flags, name)) {
      throw ParseError(args[i] + ": --" + name + " is a switch and takes no value");
    }
    const FlagTable::Flag* flag = flags.find(name);
    if (!flag || !std::holds_alternative<std::vector<std::string>*>(flag->field)) {
      others.push_back(args[i]);
      continue;
    }
    std::vector<std::string> values;
    if (equals != std::string::npos) values.push_back(args[i].substr(equals + 1));
    while (i + 1 < args.size() && args[i + 1].rfind("--", 0) != 0) values.push_back(args[++i]);
    if (values.empty()) throw ParseError("--" + name + " needs at least one value");
    std::string origin = "--" + name;
    for (const std::string& value : values) origin += " " + value;
    flags.set_list(name, origin, std::move(values));
  }
  return others;
}

// Insertions, deletions and substitutions that turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t substituted = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

// The known flag meant by `name`: one that it abbreviates (argparse allows that), or the nearest.
std::string suggestion(const FlagTable& flags, const std::string& name) {
  constexpr size_t kLongestName = 64;  // the distance takes quadratic time
  if (name.size() > kLongestName) return "";
  std::vector<std::string> known;
  for (const FlagTable::Flag& flag : flags.flags()) known.push_back(flag.name);
  for (const ForeignFlag& flag : foreign_flags()) known.emplace_back(flag.name);
  size_t nearest = std::max<size_t>(2, name.size() / 4) + 1;
  std::string best;
  for (const std::string& candidate : known) {
    const bool abbreviated = name.size() >= 4 && candidate.rfind(name, 0) == 0;
    const size_t distance = abbreviated ? 1 : edit_distance(name, candidate);
    if (distance < nearest) {
      nearest = distance;
      best = candidate;
    }
  }
  return best.empty() ? "" : "; did you mean --" + best + "?";
}

[[noreturn]] void refuse_argument(const FlagTable& flags, const std::string& arg) {
  if (!is_flag(arg)) {
    throw ParseError("unexpected argument '" + arg +
                     "': flags begin with --, switches take no value");
  }
  const std::string name = flag_name(arg);
  throw ParseError("unknown flag --" + name + suggestion(flags, name));
}

std::string help_text(const FlagTable& flags) {
  std::vector<std::string> groups;
  for (const FlagTable::Flag& flag : flags.flags()) {
    if (std::find(groups.begin(), groups.end(), flag.group) == groups.end()) {
      groups.push_back(flag.group);
    }
  }
  groups.push_back("Help");
  std::string text = make_options(flags).help(groups);
  text += "\nAccepted from Megatron-DeepSpeed, without effect on results here:\n";
  std::string line = " ";
  for (const ForeignFlag& flag : foreign_flags()) {
    if (!flag.reason.empty()) continue;
    if (line.size() + flag.name.size() > 96) {
      text += line + "\n";
      line = " ";
    }
    line += " --" + std::string(flag.name);
  }
  return text + line + "\n";
}

}  // namespace

std::string text_asked_for(const FlagTable& flags, const std::vector<std::string>& args) {
  const auto has = [&args](const char* arg) {
    return std::find(args.begin(), args.end(), arg) != args.end();
  };
  if (has("--version")) return flags.program() + " " ANYMESH_VERSION "\n";
  return has("--help") || has("-h") ? help_text(flags) : "";
}

std::vector<std::string> read_command_line(FlagTable& flags, const std::vector<std::string>& args) {
  const std::vector<std::string> others = take_lists(flags, args);
  std::vector<const char*> argv{flags.program().c_str()};
  for (const std::string& arg : others) argv.push_back(arg.c_str());
  cxxopts::Options options = make_options(flags);
  cxxopts::ParseResult parsed;
  try {
    parsed = options.parse(static_cast<int>(argv.size()), argv.data());
  } catch (const cxxopts::exceptions::missing_argument&) {
    throw ParseError(others.back() + " needs a value");  // only the last flag can lack one
  }
  std::map<std::string, const cxxopts::KeyValue*>
      last;  // wins, as in argparse: scripts append "$@"
  for (const cxxopts::KeyValue& argument : parsed.arguments()) last[argument.key()] = &argument;
  std::vector<std::string> ignored;
  for (const cxxopts::KeyValue& argument : parsed.arguments()) {
    const std::string& name = argument.key();
    if (last[name] != &argument) continue;
    const std::string& value = argument.value();
    if (is_flag(value)) throw ParseError("--" + name + " needs a value, got the flag " + value);
    if (const ForeignFlag* foreign = find_foreign_flag(name)) {
      check_foreign_flag(*foreign, value);
      if (foreign->reason.empty()) ignored.push_back("--" + name);
    } else if (is_switch(flags, name)) {
      flags.set(name, "--" + name, flags.find(name)->on ? "true" : "false");
    } else {
      flags.set(name, "--" + name + " " + value, value);
    }
  }
  if (!parsed.unmatched().empty()) refuse_argument(flags, parsed.unmatched().front());
  return ignored;
}

}  // namespace anymesh
