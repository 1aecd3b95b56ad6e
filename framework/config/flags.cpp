#include "framework/config/flags.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "framework/config/config.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/parse_number.h"
#include "framework/util/shell_word.h"

namespace anymesh {
namespace {

// Parses `text` as the value of a field that is not a list.
template <class T>
T parsed(const std::string& text, const std::string& origin) {
  if constexpr (std::is_same_v<T, bool>) {
    if (text != "true" && text != "false") throw UserError(origin + ": expected true or false");
    return text == "true";
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (text.empty()) throw UserError(origin + ": the value is empty");
    return text;
  } else if constexpr (std::is_integral_v<T>) {
    // Unsigned fields stop at int64's maximum: checkpoints and Setting hold every integer as int64.
    constexpr int64_t kMin = std::is_unsigned_v<T> ? 0 : int64_t{std::numeric_limits<T>::min()};
    constexpr int64_t kMax = sizeof(T) == 8 ? std::numeric_limits<int64_t>::max()
                                            : int64_t(std::numeric_limits<T>::max());
    const auto value = parse_number<int64_t>(text);
    if (!value || *value < kMin || *value > kMax) {
      throw UserError(origin + ": expected an integer between " + std::to_string(kMin) + " and " +
                      std::to_string(kMax));
    }
    return static_cast<T>(*value);
  } else {
    const auto value = parse_number<double>(text);
    if (!value || !std::isfinite(*value)) throw UserError(origin + ": expected a number");
    return *value;
  }
}

// Parses one integer, or a list of them: "2", "[0, 1,1]".
std::vector<int> parsed_integers(const std::string& text, const std::string& origin) {
  if (!text.starts_with('[')) return {parsed<int>(text, origin)};
  std::vector<int> values;
  if (text.ends_with(']')) {
    const std::string_view inner = std::string_view(text).substr(1, text.size() - 2);
    for (const std::string_view item : split(inner, ','))
      values.push_back(parsed<int>(
          std::string(item.substr(std::min(item.find_first_not_of(' '), item.size()))), origin));
  }
  if (values.empty()) throw UserError(origin + ": expected an integer or a list such as [0,1,1]");
  return values;
}

Setting::Value value_of(const FlagTable::Field& field) {
  return std::visit(
      [](auto* p) -> Setting::Value {
        using T = std::remove_pointer_t<decltype(p)>;
        if constexpr (std::is_same_v<T, std::optional<double>>) {
          return *p ? Setting::Value(**p) : Setting::Value();
        } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
          return static_cast<int64_t>(*p);
        } else if constexpr (std::is_same_v<T, Number>) {
          const bool whole = std::trunc(p->value) == p->value && std::abs(p->value) < 0x1p53;
          return whole ? Setting::Value(static_cast<int64_t>(p->value)) : Setting::Value(p->value);
        } else if constexpr (std::is_same_v<T, std::vector<int>>) {
          if (p->size() == 1) return int64_t{p->front()};
          return std::vector<int64_t>(p->begin(), p->end());
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
  if (auto* p = std::get_if<std::vector<int64_t>>(&value)) return list_text(*p);
  const std::string items = joined(std::get<std::vector<std::string>>(value), " ");
  return items.empty() ? "none" : items;
}

std::string words_of(const FlagTable::Flag& flag, const Setting::Value& value) {
  std::string words = "--" + flag.name;
  if (auto* p = std::get_if<bool>(&value)) return *p == flag.on ? words : "";
  if (auto* p = std::get_if<std::vector<std::string>>(&value)) {
    for (const std::string& item : *p) words += " " + shell_word(item);
    return words;
  }
  return words + " " + shell_word(text_of(value));
}

}  // namespace

void FlagTable::add(Flag flag) {
  if (find(flag.name)) throw std::logic_error("flag --" + flag.name + " is declared twice");
  if (auto* p = std::get_if<bool*>(&flag.field)) {
    flag.on = !**p;
    flag.default_text = "off";  // the flag's default; the field may well be true
    if (!flag.on && flag.dest.empty() && !flag.name.starts_with("no-")) {
      throw std::logic_error("--" + flag.name +
                             " clears its field: its name must begin with no-, or give its dest");
    }
  }
  if (flag.dest.empty()) {
    // This is argparse's rule as Megatron uses it. "--no-x", which clears a true value, has the
    // attribute "x". "--no-load-rng", which sets a false value, has "no_load_rng".
    flag.dest = flag.on ? flag.name : flag.name.substr(std::string_view("no-").size());
    std::replace(flag.dest.begin(), flag.dest.end(), '-', '_');
  }
  if (flag.default_text.empty()) flag.default_text = text_of(value_of(flag.field));
  flags_.push_back(std::move(flag));
}

void FlagTable::alias(std::string name, std::string_view of) {
  Flag& flag = flags_[index_of(of)];
  flag.help += " (or --" + name + ")";
  aliases_[std::move(name)] = flag.name;
}

const FlagTable::Flag* FlagTable::find(std::string_view name) const {
  if (const auto other = aliases_.find(name); other != aliases_.end()) name = other->second;
  const auto flag = std::ranges::find(flags_, name, &Flag::name);
  return flag == flags_.end() ? nullptr : &*flag;
}

size_t FlagTable::index_of(std::string_view name) const {
  const Flag* flag = find(name);
  if (!flag) throw std::logic_error("no flag --" + std::string(name) + " in the table");
  return flag - flags_.data();
}

void FlagTable::set(std::string_view name, const std::string& origin,
                    const std::vector<std::string>& values) {
  Flag& flag = flags_[index_of(name)];
  const Setting::Value before = value_of(flag.field);
  const auto assign = [&]<class T>(T* field) {
    if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      field->clear();
      for (const std::string& text : values) field->push_back(parsed<std::string>(text, origin));
    } else {
      if (values.size() != 1) throw std::logic_error(origin + ": takes one value");
      if constexpr (std::is_same_v<T, std::vector<int>>)
        *field = parsed_integers(values[0], origin);
      else
        *field = parsed<T>(values[0], origin);
    }
  };
  std::visit(assign, flag.field);
  if (flag.origin.empty()) {
    flag.origin = origin;
  } else if (value_of(flag.field) != before) {
    throw UserError(flag.origin + " and " + origin + " contradict each other; keep one of them");
  }
}

const std::string& FlagTable::origin(std::string_view name) const {
  return flags_[index_of(name)].origin;
}

std::vector<Setting> FlagTable::settings() const {
  std::vector<Setting> settings;
  for (const Flag& flag : flags_) {
    const Setting::Value value = value_of(flag.field);
    settings.push_back(
        {flag.name, flag.dest, value, text_of(value), !flag.origin.empty(), words_of(flag, value)});
  }
  return settings;
}

}  // namespace anymesh
