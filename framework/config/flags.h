// The table of flags. Each flag is declared once, in a row: its name, the field it sets, its help,
// and the rules for its value. The value of the field at that moment is the default.
//
//   flags.group("Parallelism");
//   flags.add("tensor-model-parallel-size", config.parallel.tp, "...", {.least = 1});
//   flags.add("no-bias-gelu-fusion", gpt.bias_gelu_fusion, "...");  // a true bool: switched off
//   flags.add("data-path", config.data.data_path, "...");           // of texts: takes 1..n values
//   flags.add("moe-layer-freq", gpt.moe_layer_freq, "...");         // of integers: 2 or [0,1,1]
//   flags.add("lr", engine.schedule.max_lr, "peak learning rate", "required");
//   flags.add("min-lr", engine.schedule.min_lr, "floor of the decay",
//             {.least = 0, .excludes = {"--lr-decay-style constant"}});
//
// Rules never refuse a default that nobody gave, so a refusal is always about a flag that was
// given, or is required. One that was given as off, 0 or nothing needs no other flag. Rules that
// compare several numbers, or look at the mesh, are in validate.cpp and the model's config.
//
// Several sources (flags, JSON keys) may set the same flag. If two of them disagree, set() throws
// and names both. It refuses text that does not parse in full ("1e-3x", "2.5" for an integer,
// "nan"), negative integers for unsigned fields, and values that are not among a row's choices.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace anymesh {

// A number whose attribute is an integer where it is whole, as Megatron's --rotary-base is.
struct Number {
  double value = 0;
  Number(double number) : value(number) {}
  operator double() const { return value; }
};

// A flag with its value: a line of the table printed at start, or an entry of a checkpoint's
// `args`.
struct Setting {
  using Value = std::variant<std::monostate, bool, int64_t, double, std::string,
                             std::vector<std::string>, std::vector<int64_t>>;
  std::string flag;  // "no-bias-gelu-fusion"
  std::string dest;  // the attribute that argparse would fill: "bias_gelu_fusion"
  Value value;       // the attribute's value; monostate = an unset optional; one integer is no list
  std::string text;  // `value`, printable
  bool given = false;
  std::string words = {};  // of a command line that sets it; none for a switch that is off or ""
};

// A change of a model's flag makes checkpoints unfit (kModel), or changes what training makes of
// them (kTraining), or neither.
enum class Decides { kModel, kTraining, kNothing };

// The rules of a row, each of them optional. Conditions are written as on a command line, and are
// part of the message:
//
//   "--save"                        the flag has another value than its default
//   "--rope-type yarn or dynamic"   it has one of these values; or "--num-experts above 1"
//   "--save or --load"              one of the two; or "--load without --save"
//   "--finetune, which starts..."   an explanation follows a comma, semicolon or colon
struct FlagRule {
  std::string shown = {};    // the default in --help, where a 0 or "" stands for it; or "required"
  std::string dest = {};     // the attribute, where argparse does not derive it from the name
  std::string implied = {};  // the value of a flag that is given without one
  std::vector<std::string> choices = {};
  double least = -HUGE_VAL, most = HUGE_VAL, above = -HUGE_VAL, below = HUGE_VAL;
  std::vector<std::string> needs = {}, excludes = {};
  Decides decides = Decides::kModel;
};

// The condition without its explanation.
inline std::string_view condition_of(std::string_view text) {
  return text.substr(0, text.find_first_of(",;:"));
}

class FlagTable {
 public:
  using Field =
      std::variant<bool*, int*, int64_t*, uint64_t*, double*, Number*, std::optional<double>*,
                   std::string*, std::vector<std::string>*, std::vector<int>*>;

  struct Flag {
    std::string name, group, help;
    Field field;
    FlagRule rule;                      // completed: `shown` and `dest` are never empty
    bool on = true;                     // the value of a bool when its flag is given
    Setting::Value default_value = {};  // the field's
    std::string origin = {};            // the source that set it first: "--lr 1e-3"
    std::string withdrawn = {};         // why this program does not take it
  };

  // REQUIRES: the fields given to add() outlive the table.
  FlagTable(std::string program, std::string description)
      : program_(std::move(program)), description_(std::move(description)) {}
  FlagTable(const FlagTable&) = delete;
  FlagTable& operator=(const FlagTable&) = delete;

  // Sets the --help heading of the flags added from here on.
  void group(std::string title) { group_ = std::move(title); }
  template <class T>
  void add(std::string name, T& field, std::string help, FlagRule rule = {}) {
    add({std::move(name), group_, std::move(help), &field, std::move(rule)});
  }
  template <class T>
  void add(std::string name, T& field, std::string help, const char* shown) {
    add(std::move(name), field, std::move(help), FlagRule{.shown = shown});
  }

  // Gives the flag a second name, as another program spells it. REQUIRES: the flag exists.
  void alias(std::string name, std::string_view of);

  // Withdraws the flags added since there were `first` of them: they keep their defaults, no help
  // and no checkpoint has them, and a command line that gives one is refused with the reason `why`.
  void withdraw(size_t first, const std::string& why);

  // `origin` names the source and its value in messages: "--lr 1e-3", "optimizer.params.lr 0.1 of
  // ds.json". A bool takes "true" or "false", the new value of its field. REQUIRES: the flag
  // exists, and there is one value unless the field is a list.
  void set(std::string_view name, const std::string& origin,
           const std::vector<std::string>& values);

  const Flag* find(std::string_view name) const;  // by either name; nullptr if there is none
  // Whether the command line or a JSON file sets the flag.
  bool given(std::string_view name) const { return !origin(name).empty(); }
  const std::string& origin(std::string_view name) const;

  const std::string& program() const { return program_; }
  const std::string& description() const { return description_; }
  const std::vector<Flag>& flags() const { return flags_; }
  std::vector<Setting> settings() const;

  // Throws UserError if a value breaks the rules of its row, for all rows from `first` on.
  void check(size_t first = 0) const;
  // Whether a rule's condition is met. REQUIRES: the table has its flags.
  bool holds(std::string_view condition) const;

 private:
  void add(Flag flag);
  size_t index_of(std::string_view name) const;

  std::string program_, description_, group_;
  std::vector<Flag> flags_;
  std::map<std::string, std::string, std::less<>> aliases_;
};

}  // namespace anymesh
