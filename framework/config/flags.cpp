#include "framework/config/flags.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
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
  if (auto* p = std::get_if<std::string>(&value); p && p->empty()) return "";
  if (auto* p = std::get_if<std::vector<std::string>>(&value)) {
    for (const std::string& item : *p) words += " " + shell_word(item);
    return words;
  }
  return words + " " + shell_word(text_of(value));
}

// The source of a value, or the words that would set it.
std::string said(const FlagTable::Flag& flag) {
  return flag.origin.empty() ? words_of(flag, value_of(flag.field)) : flag.origin;
}

bool is_changed(const FlagTable::Flag& flag) { return value_of(flag.field) != flag.default_value; }

double number_of(const Setting::Value& value) {
  if (auto* p = std::get_if<int64_t>(&value)) return static_cast<double>(*p);
  auto* p = std::get_if<double>(&value);
  return p ? *p : std::nan("");
}

// Whether the value is a switch that is off, 0 or empty. Such a value needs no other flag.
bool asks_for_nothing(const FlagTable::Flag& flag) {
  return std::holds_alternative<bool*>(flag.field) ||
         words_of(flag, value_of(flag.field)).empty() || number_of(value_of(flag.field)) == 0;
}

void check_choice(const FlagTable::Flag& flag) {
  const auto* text = std::get_if<std::string*>(&flag.field);
  const std::vector<std::string>& choices = flag.rule.choices;
  if (text && !choices.empty() && std::ranges::find(choices, **text) == choices.end())
    throw UserError(said(flag) + ": expected one of " + joined(choices));
}

// "must be in [0, 1)", "must be positive".
std::string range_text(const FlagRule& rule) {
  const auto text = [](double number) { return text_of(Setting::Value(number)); };
  const double low = std::max(rule.least, rule.above), high = std::min(rule.most, rule.below);
  if (std::isfinite(low) && std::isfinite(high))
    return (low == rule.least ? "must be in [" : "must be in (") + text(low) + ", " + text(high) +
           (high == rule.most ? "]" : ")");
  if (std::isfinite(high)) return "must be at most " + text(high);
  if (rule.above == low && std::isfinite(low)) return "must be positive";
  if (!std::isfinite(low)) return "has no default";
  return low == 0 ? "must not be negative" : "must be at least " + text(low);
}

void check_value(const FlagTable::Flag& flag) {
  const FlagRule& rule = flag.rule;
  const Setting::Value value = value_of(flag.field);
  check_choice(flag);
  const double number = number_of(value);
  const bool is_missing = !is_changed(flag);
  if (!is_missing &&
      !(number < rule.least || number > rule.most || number <= rule.above || number >= rule.below))
    return;
  throw UserError("--" + flag.name + " (" + text_of(value) + ") " +
                  (is_missing ? "is required and " : "") + range_text(rule));
}

}  // namespace

void FlagTable::add(Flag flag) {
  if (find(flag.name)) throw std::logic_error("flag --" + flag.name + " is declared twice");
  if (auto* p = std::get_if<bool*>(&flag.field)) {
    flag.on = !**p;
    flag.rule.shown = "off";  // the flag's default; the field may well be true
    if (!flag.on && flag.rule.dest.empty() && !flag.name.starts_with("no-")) {
      throw std::logic_error("--" + flag.name +
                             " clears its field: its name must begin with no-, or give its dest");
    }
  }
  std::string& dest = flag.rule.dest;
  if (dest.empty()) {
    // This is argparse's rule as Megatron uses it. "--no-x", which clears a true value, has the
    // attribute "x". "--no-load-rng", which sets a false value, has "no_load_rng".
    dest = flag.on ? flag.name : flag.name.substr(std::string_view("no-").size());
    std::replace(dest.begin(), dest.end(), '-', '_');
  }
  flag.default_value = value_of(flag.field);
  if (flag.rule.shown.empty()) flag.rule.shown = text_of(flag.default_value);
  flags_.push_back(std::move(flag));
}

void FlagTable::alias(std::string name, std::string_view of) {
  Flag& flag = flags_[index_of(of)];
  flag.help += " (or --" + name + ")";
  aliases_[std::move(name)] = flag.name;
}

void FlagTable::withdraw(size_t first, const std::string& why) {
  for (Flag& flag : std::span(flags_).subspan(first)) flag.withdrawn = why;
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
  if (!flag.withdrawn.empty()) throw UserError(origin + ": " + flag.withdrawn);
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
  check_choice(flag);
}

const std::string& FlagTable::origin(std::string_view name) const {
  return flags_[index_of(name)].origin;
}

std::vector<Setting> FlagTable::settings() const {
  std::vector<Setting> settings;
  for (const Flag& flag : flags_) {
    if (!flag.withdrawn.empty()) continue;
    const Setting::Value value = value_of(flag.field);
    settings.push_back({flag.name, flag.rule.dest, value, text_of(value), !flag.origin.empty(),
                        words_of(flag, value)});
  }
  return settings;
}

bool FlagTable::holds(std::string_view condition) const {
  condition = condition_of(condition);
  constexpr std::string_view kWithout = " without ";
  if (const size_t at = condition.find(kWithout); at != condition.npos)
    return holds(condition.substr(0, at)) && !holds(condition.substr(at + kWithout.size()));
  const Flag* flag = nullptr;
  bool met = false, has_values = true, above = false;
  for (const std::string_view word : split(condition, ' ')) {
    if (word.starts_with("--")) {
      met |= !has_values && is_changed(*flag);
      flag = &flags_[index_of(word.substr(2))];
      has_values = false;
    } else if (word == "above") {
      above = true;
    } else if (word != "or") {
      const Setting::Value value = value_of(flag->field);
      met |= std::exchange(above, false) ? number_of(value) > parse_number<double>(word).value()
                                         : text_of(value) == word;
      has_values = true;
    }
  }
  return met || (!has_values && is_changed(*flag));
}

void FlagTable::check(size_t first) const {
  for (const Flag& flag : std::span(flags_).subspan(first)) {
    if (is_changed(flag) || flag.rule.shown == "required") check_value(flag);
    if (!is_changed(flag) && (flag.origin.empty() || asks_for_nothing(flag))) continue;
    for (const std::string_view need : flag.rule.needs) {
      if (holds(need)) continue;
      const std::string_view asked = condition_of(need);
      const bool one_value = asked.find(' ') != asked.npos && asked.rfind("--") == 0;
      throw UserError(
          said(flag) + " has no effect without " + std::string(need) +
          (one_value ? "; got " + said(*find(asked.substr(2, asked.find(' ') - 2))) : ""));
    }
    for (const std::string_view other : flag.rule.excludes) {
      if (!holds(other)) continue;
      const Flag* alone = find(other.substr(2));  // null if there are more words
      throw UserError(said(flag) + " does not work with " +
                      (alone ? said(*alone) + "; keep one of them" : std::string(other)));
    }
  }
}

}  // namespace anymesh
