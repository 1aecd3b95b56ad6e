#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "framework/checkpoint/format/pickle.h"
#include "framework/checkpoint/format/pickle_opcodes.h"

namespace anymesh {

// Python's pickle machine: a stack of values, marks in it, and a memo. Containers are shared
// between the stack, the memo and each other while they are filled, and checked once the whole is
// there. The inside of pickle.h: opcodes in pickle_decoder.cpp, classes and tensors in
// pickle_objects.cpp, the final check in pickle_check.cpp.
class PickleDecoder {
 public:
  PickleDecoder(std::span<const std::byte> input, const OpenStorage& open_storage,
                uint64_t file_size)
      : input_(input), open_storage_(open_storage), limit_(file_size + kAllowance) {}
  ~PickleDecoder() { forget({}); }

  Value run();
  size_t position() const { return position_; }

 private:
  // A storage on the stack is an object of this type. No file can name it: it has no module.
  static const Value::Global kStorageType;
  static bool is_storage(const Value& value);

  struct Storage {
    std::string key;
    DType dtype;
    int64_t numel;
    BytesPtr bytes;
  };

  // Memory, in estimates that are never less than what it takes. A vector that grows holds its old
  // and its new buffer, up to three times its size; the final check has two maps of containers.
  static constexpr uint64_t kAllowance = 48 << 20;
  static constexpr uint64_t kValueBytes = sizeof(Value) + 3 * sizeof(void*),
                            kGrownValueBytes = 3 * kValueBytes, kMemoBytes = sizeof(Value) + 64,
                            kContainerBytes = 256, kObjectBytes = 512, kTensorBytes = 1024;
  void hold(uint64_t bytes);
  static uint64_t copied_bytes(const Value& value);

  // Input.
  void check_rest(uint64_t count) const;  // throws unless so many bytes are left
  std::span<const std::byte> take(uint64_t count);
  uint64_t take_uint(size_t width);
  std::string take_text(uint64_t size);
  std::string take_line();

  // Stack and memo.
  void push(Value value);
  Value& top();
  Value pop();
  std::vector<Value> pop_to_mark();
  std::vector<Value> pop_last(size_t count);
  const Value& recall(uint64_t index) const;
  void memoize(uint64_t index);

  // New containers, which are remembered until the end.
  void push_sequence(Value::Kind kind, std::vector<Value> items);
  void push_mapping(Value::Kind kind);
  void push_object(Value::Object object);

  // Opcodes. Each of these returns false, or nothing, for one that is not its own.
  bool step();
  std::optional<Value> read_scalar(Opcode opcode);
  bool step_memo(Opcode opcode);
  bool step_new_container(Opcode opcode);
  bool step_fill(Opcode opcode);
  bool step_object(Opcode opcode);
  void append(std::vector<Value> items);
  void set_items(std::vector<Value> flat);

  // Classes.
  void push_global(std::string module, std::string name);
  std::vector<Value> copy_args(const Value& value);
  std::vector<Value> copy_items(const Value& value);
  void reduce(const Value::Global& function, std::vector<Value> args);
  bool reduce_known(const Value::Global& function, const std::vector<Value>& args);
  void new_object();
  void build();
  void push_storage(const Value& id);
  void push_tensor(const std::vector<Value>& args);
  BytesPtr view(size_t storage, int64_t offset, int64_t numel);

  // The whole.
  using Reached = std::unordered_map<const void*, uint64_t>;  // container -> values in it
  Reached check_tree(const Value& root) const;
  static std::vector<const Value*> children(const Value& value);
  static const void* node(const Value& value);
  void forget(const Reached& reached);

  std::span<const std::byte> input_;
  const OpenStorage& open_storage_;
  const uint64_t limit_;
  uint64_t held_ = 0;
  size_t position_ = 0;
  size_t deepest_ = 0;  // that the stack has been
  std::vector<Value> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Value> memo_;
  std::vector<Storage> storages_;
  std::unordered_map<std::string, size_t> storage_index_;
  std::map<std::tuple<size_t, int64_t, int64_t>, BytesPtr>
      views_;  // equal views are the same memory
  std::vector<std::shared_ptr<Value::Sequence>> sequences_;
  std::vector<std::shared_ptr<Value::Mapping>> mappings_;
  std::vector<std::shared_ptr<Value::Object>> objects_;
};

}  // namespace anymesh
