// The table of flags. Each flag is declared once, with its group, its help and the field it sets.
// The value of the field at that moment is the default.
//
//   flags.group("Parallelism");
//   flags.add("tensor-model-parallel-size", config.parallel.tp, "ranks that share each layer");
//   flags.add("no-bias-gelu-fusion", gpt.bias_gelu_fusion, "...");  // a true bool: switched off
//   flags.add("data-path", config.data.data_path, "...");           // of texts: takes 1..n values
//   flags.add("moe-layer-freq", gpt.moe_layer_freq, "...");         // of integers: 2 or [0,1,1]
//   flags.add("disable-bias-linear", gpt.add_bias_linear, "...", "", "add_bias_linear");  // dest
//
// Several sources (flags, JSON keys) may set the same flag. If two of them disagree, set() throws
// and names both. It refuses text that does not parse in full ("1e-3x", "2.5" for an integer,
// "nan") and negative integers for unsigned fields.
#pragma once

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
  std::string words = {};  // of a command line that sets it; none for a switch that is off
};

class FlagTable {
 public:
  using Field =
      std::variant<bool*, int*, int64_t*, uint64_t*, double*, Number*, std::optional<double>*,
                   std::string*, std::vector<std::string>*, std::vector<int>*>;

  struct Flag {
    std::string name, group, help;
    Field field;
    std::string default_text;  // for --help: "1e-08", "off", "required"
    std::string dest;          // see Setting
    bool on = true;            // the value of a bool when its flag is given
    std::string origin = {};   // the source that set it first: "--lr 1e-3"; empty = default
  };

  // REQUIRES: the fields given to add() outlive the table.
  FlagTable(std::string program, std::string description)
      : program_(std::move(program)), description_(std::move(description)) {}
  FlagTable(const FlagTable&) = delete;
  FlagTable& operator=(const FlagTable&) = delete;

  // Sets the --help heading of the flags added from here on.
  void group(std::string title) { group_ = std::move(title); }
  // `default_text` is for --help, where a field's 0 or "" stands for something: "--train-iters".
  // `dest` is for flags whose attribute argparse does not derive from the name.
  template <class T>
  void add(std::string name, T& field, std::string help, std::string default_text = "",
           std::string dest = "") {
    add({std::move(name), group_, std::move(help), &field, std::move(default_text),
         std::move(dest)});
  }

  // Gives the flag a second name, as another program spells it. REQUIRES: the flag exists.
  void alias(std::string name, std::string_view of);

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

 private:
  void add(Flag flag);
  size_t index_of(std::string_view name) const;

  std::string program_, description_, group_;
  std::vector<Flag> flags_;
  std::map<std::string, std::string, std::less<>> aliases_;
};

}  // namespace anymesh
