#include "framework/config/flags.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "framework/config/config.h"
#include "framework/parse_number.h"

namespace anymesh {
namespace {

template <class T>
T parse_integer(const std::string& text, const std::string& origin) {
  // Unsigned fields stop at int64's maximum: checkpoints and Setting hold every integer as int64.
  constexpr int64_t kMin = std::is_unsigned_v<T> ? 0 : int64_t{std::numeric_limits<T>::min()};
  constexpr int64_t kMax =
      sizeof(T) == 8 ? std::numeric_limits<int64_t>::max() : int64_t(std::numeric_limits<T>::max());
  const auto value = parse_number<int64_t>(text);
  if (!value || *value < kMin || *value > kMax) {
    throw ParseError(origin + ": expected an integer between " + std::to_string(kMin) + " and " +
                     std::to_string(kMax));
  }
  return static_cast<T>(*value);
}

double parse_double(const std::string& text, const std::string& origin) {
  const auto value = parse_number<double>(text);
  if (!value || !std::isfinite(*value)) throw ParseError(origin + ": expected a number");
  return *value;
}

void assign(FlagTable::Field field, const std::string& origin, const std::string& text) {
  const auto parsed_as = [&]<class T>(T* p) {
    if constexpr (std::is_same_v<T, bool>) {
      if (text != "true" && text != "false") throw ParseError(origin + ": expected true or false");
      *p = text == "true";
    } else if constexpr (std::is_integral_v<T>) {
      *p = parse_integer<T>(text, origin);
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (text.empty()) throw ParseError(origin + ": the value is empty");
      *p = text;
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      throw std::logic_error(origin + ": a list is set with set_list()");
    } else {
      *p = parse_double(text, origin);
    }
  };
  std::visit(parsed_as, field);
}

Setting::Value value_of(const FlagTable::Field& field) {
  return std::visit(
      [](auto* p) -> Setting::Value {
        using T = std::remove_pointer_t<decltype(p)>;
        if constexpr (std::is_same_v<T, std::optional<double>>) {
          return *p ? Setting::Value(**p) : Setting::Value();
        } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
          return static_cast<int64_t>(*p);
        } else {
          return *p;
        }
      },
      field);
}

std::string text_of(const Setting::Value& value) {
  if (std::holds_alternative<std::monostate>(value)) return "unset";
  if (auto* p = std::get_if<bool>(&value)) return *p ? "true" : "false";
  if (auto* p = std::get_if<int64_t>(&value)) return std::to_string(*p);
  if (auto* p = std::get_if<double>(&value)) {
    char text[32];  // shortest text that reads back as the same double
    return {text, std::to_chars(text, text + sizeof text, *p).ptr};
  }
  if (auto* p = std::get_if<std::string>(&value)) return p->empty() ? "none" : *p;
  std::string joined;
  for (const std::string& item : std::get<std::vector<std::string>>(value)) {
    joined += (joined.empty() ? "" : " ") + item;
  }
  return joined.empty() ? "none" : joined;
}

// argparse's rule as Megatron uses it: "--no-x" that clears a true value has the attribute "x",
// while "--no-load-rng", which sets a false one, has "no_load_rng".
std::string dest_of(const FlagTable::Flag& flag) {
  std::string dest = flag.on ? flag.name : flag.name.substr(std::string("no-").size());
  std::replace(dest.begin(), dest.end(), '-', '_');
  return dest;
}

}  // namespace

FlagTable::FlagTable(std::string program, std::string description)
    : program_(std::move(program)), description_(std::move(description)) {}

void FlagTable::group(std::string title) { group_ = std::move(title); }

void FlagTable::add_field(std::string name, Field field, std::string help, std::string default_text,
                          std::string dest) {
  if (find(name)) throw std::logic_error("flag --" + name + " is declared twice");
  Flag flag{.name = std::move(name),
            .group = group_,
            .help = std::move(help),
            .field = field,
            .default_text = std::move(default_text),
            .dest = std::move(dest)};
  if (auto* p = std::get_if<bool*>(&field)) {
    flag.on = !**p;
    flag.default_text = "off";  // of the flag; the field may well be true
    if (!flag.on && flag.dest.empty() && flag.name.rfind("no-", 0) != 0) {
      throw std::logic_error("--" + flag.name +
                             " clears its field: its name must begin with no-, or give its dest");
    }
  }
  if (flag.dest.empty()) flag.dest = dest_of(flag);
  if (flag.default_text.empty()) flag.default_text = text_of(value_of(field));
  flags_.push_back(std::move(flag));
}

const FlagTable::Flag* FlagTable::find(std::string_view name) const {
  const auto is_named = [name](const Flag& flag) { return flag.name == name; };
  const auto flag = std::find_if(flags_.begin(), flags_.end(), is_named);
  return flag == flags_.end() ? nullptr : &*flag;
}

size_t FlagTable::index_of(std::string_view name) const {
  const Flag* flag = find(name);
  if (!flag) throw std::logic_error("no flag --" + std::string(name) + " in the table");
  return flag - flags_.data();
}

void FlagTable::set(std::string_view name, const std::string& origin, const std::string& text) {
  Flag& flag = flags_[index_of(name)];
  const Setting::Value before = value_of(flag.field);
  assign(flag.field, origin, text);
  if (!flag.origin.empty() && value_of(flag.field) != before) {
    throw ParseError(flag.origin + " and " + origin + " contradict each other; keep one of them");
  }
  if (flag.origin.empty()) flag.origin = origin;
}

void FlagTable::set_list(std::string_view name, const std::string& origin,
                         std::vector<std::string> values) {
  Flag& flag = flags_[index_of(name)];
  auto& field = *std::get<std::vector<std::string>*>(flag.field);
  for (const std::string& value : values) {
    if (value.empty()) throw ParseError(origin + ": the value is empty");
  }
  if (!flag.origin.empty() && field != values) {
    throw ParseError(flag.origin + " and " + origin + " contradict each other; keep one of them");
  }
  flag.origin = origin;
  field = std::move(values);
}

bool FlagTable::given(std::string_view name) const { return !origin(name).empty(); }

const std::string& FlagTable::origin(std::string_view name) const {
  return flags_[index_of(name)].origin;
}

std::vector<Setting> FlagTable::settings() const {
  std::vector<Setting> settings;
  for (const Flag& flag : flags_) {
    Setting::Value value = value_of(flag.field);
    std::string text = text_of(value);
    settings.push_back(
        {flag.name, flag.dest, std::move(value), std::move(text), !flag.origin.empty()});
  }
  return settings;
}

}  // namespace anymesh
