#include "framework/config/command_line.h"

#include <algorithm>
#include <cxxopts.hpp>
#include <sstream>
#include <string_view>
#include <type_traits>

#include "framework/config/foreign_flags.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/nearest_name.h"

namespace anymesh {
namespace {

// The words behind a flag, for --help: "" for a switch, "TEXT..." for a list.
std::string value_name(const FlagTable::Field& field) {
  return std::visit(
      []<class T>(T*) {
        if constexpr (std::is_same_v<T, bool>) return "";
        if constexpr (std::is_same_v<T, std::string>) return "TEXT";
        if constexpr (std::is_same_v<T, std::vector<std::string>>) return "TEXT...";
        if constexpr (std::is_same_v<T, std::vector<int>>) return "N|[N,N,...]";
        return std::is_integral_v<T> ? "N" : "X";
      },
      field);
}

bool is_flag(const std::string& arg) { return arg.starts_with("--") && arg.size() > 2; }

std::string flag_name(const std::string& arg) { return arg.substr(2, arg.find('=') - 2); }

enum class Kind { kUnknown, kSwitch, kValue, kList };

Kind kind_of(const FlagTable& flags, const std::string& name) {
  if (name == "help" || name == "version") return Kind::kSwitch;
  if (const FlagTable::Flag* flag = flags.find(name)) {
    const std::string values = value_name(flag->field);
    return values.empty() ? Kind::kSwitch : values == "TEXT..." ? Kind::kList : Kind::kValue;
  }
  const Foreign* foreign = find_foreign(foreign_flags(), name);
  return !foreign ? Kind::kUnknown : foreign->takes_value ? Kind::kValue : Kind::kSwitch;
}

struct Given {
  std::string name;
  std::vector<std::string> values;  // empty for a switch
};

// Reads the flag at args[i] and moves `i` to its last value.
Given take_flag(Kind kind, const std::string& implied, const std::vector<std::string>& args,
                size_t& i) {
  Given given{flag_name(args[i]), {}};
  const std::string flag = "--" + given.name;
  const size_t equals = args[i].find('=');
  if (equals != std::string::npos) {
    if (kind == Kind::kSwitch)
      throw UserError(args[i] + ": " + flag + " is a switch and takes no value");
    given.values.push_back(args[i].substr(equals + 1));
  } else if (!implied.empty() && (i + 1 == args.size() || is_flag(args[i + 1]))) {
    given.values.push_back(implied);
  } else if (kind == Kind::kValue) {
    if (i + 1 == args.size()) throw UserError(flag + " needs a value");
    given.values.push_back(args[++i]);
  }
  if (kind == Kind::kValue && is_flag(given.values[0]))
    throw UserError(flag + " needs a value, got the flag " + given.values[0]);
  if (kind == Kind::kList) {
    while (i + 1 < args.size() && !args[i + 1].starts_with("--")) given.values.push_back(args[++i]);
    if (given.values.empty()) throw UserError(flag + " needs at least one value");
  }
  return given;
}

// Whether the program has all flags that the advice names.
bool fits(const FlagTable& flags, const std::string& advice) {
  std::istringstream words(advice);
  for (std::string word; words >> word;) {
    if (!is_flag(word)) continue;
    if (!flags.find(word.substr(2, word.find_first_of(",;") - 2))) return false;
  }
  return true;
}

// Returns advice on the flag to write in place of an unknown one.
std::string suggestion(const FlagTable& flags, const std::string& name) {
  if (const std::string advice(advice_on(name)); !advice.empty() && fits(flags, advice))
    return "; " + advice;
  std::vector<std::string> known;
  for (const FlagTable::Flag& flag : flags.flags())
    if (flag.withdrawn.empty()) known.push_back(flag.name);
  for (const Foreign& foreign : foreign_flags()) {
    if (!foreign.ignored() && foreign.accepted.empty()) continue;
    for (const std::string_view flag : split(foreign.names, '|')) known.emplace_back(flag);
  }
  const std::string nearest = nearest_name(name, known);
  return nearest.empty() ? "" : "; did you mean --" + nearest + "?";
}

[[noreturn]] void refuse_argument(const FlagTable& flags, const std::string& arg) {
  if (arg == "--")
    throw UserError("unexpected argument '--': every word belongs to a flag; leave it out");
  if (!is_flag(arg)) {
    const std::string meant = arg.substr(0, arg.find('='));
    const bool one_dash =
        meant.starts_with("-") && kind_of(flags, meant.substr(1)) != Kind::kUnknown;
    throw UserError("unexpected argument '" + arg +
                    "': flags begin with --, switches take no value" +
                    (one_dash ? "; did you mean -" + meant + "?" : ""));
  }
  const std::string name = flag_name(arg);
  throw UserError("unknown flag --" + name + suggestion(flags, name));
}

std::string help_text(const FlagTable& flags) {
  cxxopts::Options options(flags.program(), flags.description());
  options.set_width(100).custom_help("[--flag value | --flag=value]...");
  std::vector<std::string> groups;
  for (const FlagTable::Flag& flag : flags.flags()) {
    if (!flag.withdrawn.empty()) continue;
    const std::string& shown = flag.rule.shown;
    std::string help = flag.help;
    if (!flag.rule.choices.empty()) help += "; one of " + joined(flag.rule.choices);
    for (const std::string& need : flag.rule.needs)  // those that need no explanation
      if (condition_of(need) == need) help += "; needs " + need;
    help += shown == "required" ? " (required)" : " (default: " + shown + ")";
    const std::string name = value_name(flag.field),
                      value = flag.rule.implied.empty() ? name : "[" + name + "]";
    options.add_option(flag.group, "", flag.name, help,
                       value.empty() ? cxxopts::value<bool>() : cxxopts::value<std::string>(),
                       value);
    if (groups.empty() || groups.back() != flag.group) groups.push_back(flag.group);
  }
  options.add_options("Help")("help", "this text")("version", "the version");
  groups.push_back("Help");
  return options.help(groups) +
         "\nAccepted from Megatron-DeepSpeed, without effect on results here:\n" +
         ignored_flags_text(foreign_flags());
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
  std::vector<Given> all;
  std::vector<std::string> others, ignored;
  for (size_t i = 0; i < args.size(); ++i) {
    const Kind kind = is_flag(args[i]) ? kind_of(flags, flag_name(args[i])) : Kind::kUnknown;
    if (kind == Kind::kUnknown) {
      others.push_back(args[i]);
      continue;
    }
    const FlagTable::Flag* const known = flags.find(flag_name(args[i]));
    Given given = take_flag(kind, known ? known->rule.implied : "", args, i);
    // The last one counts, as in argparse, because scripts append "$@".
    std::erase_if(all, [&](const Given& before) { return before.name == given.name; });
    all.push_back(std::move(given));
  }
  for (auto& [name, values] : all) {
    std::string origin = "--" + name;
    for (const std::string& value : values) origin += " " + value;
    if (const Foreign* foreign = find_foreign(foreign_flags(), name)) {
      foreign->check(origin, values.empty() ? "" : values[0]);
      if (foreign->ignored()) ignored.push_back("--" + name);
    } else {
      if (values.empty()) values = {flags.find(name)->on ? "true" : "false"};
      flags.set(name, origin, values);
    }
  }
  if (!others.empty()) refuse_argument(flags, others.front());
  return ignored;
}

}  // namespace anymesh
