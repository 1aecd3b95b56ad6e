#include <algorithm>

#include "framework/format/whole.h"
#include "framework/util/errors.h"
#include "tools/ckpt/ckpt.h"
#include "tools/plot/figure.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr double kLargest = 280, kSmallest = 110, kBetween = 110, kLetter = 6.6, kGap = 12;
constexpr double kTitleLetter = 12, kHeadLetter = 8.2, kHead = 18, kText = 16;
constexpr size_t kMostBoxes = 32;

// A block of the tensor, seen as a matrix.
struct Block {
  int64_t row, column, rows, columns;
};

// Adds a block, or lengthens one of the last few that ends where it begins.
void add_block(const Block& block, std::vector<Block>& blocks) {
  constexpr size_t kNear = 16;  // more than a row has pieces
  for (size_t back = 1; back <= std::min(kNear, blocks.size()); ++back) {
    Block& above = blocks[blocks.size() - back];
    if (above.column != block.column || above.columns != block.columns ||
        above.row + above.rows != block.row)
      continue;
    above.rows += block.rows;
    return;
  }
  blocks.push_back(block);
}

// A tensor as a matrix whose rows or columns tp cuts.
struct Matrix {
  explicit Matrix(const SavedParameter& parameter) {
    const Shape& shape = parameter.shape;
    const auto dim = static_cast<size_t>(parameter.cut.replicated ? 0 : parameter.cut.dim);
    const bool by_rows = dim == 0 && shape.size() > 1;
    rows = by_rows ? shape[0] : numel(std::span<const int64_t>(shape).first(dim));
    columns = rows == 0 ? 0 : numel(shape) / rows;
  }

  // Returns the blocks of elements of a shard. A run of elements is the rest of a row, whole rows
  // and the beginning of a row.
  std::vector<Block> blocks(const ShardLayout& slice, int64_t begin, int64_t count) const {
    std::vector<Block> blocks;
    slice.for_each_run(begin, count, [&](int64_t at, int64_t, int64_t left) {
      while (left > 0) {
        const int64_t column = at % columns, whole = column == 0 ? left / columns : 0,
                      width = whole > 0 ? columns : std::min(left, columns - column);
        const Block block{at / columns, column, std::max<int64_t>(whole, 1), width};
        add_block(block, blocks);
        at += block.rows * width;
        left -= block.rows * width;
      }
    });
    return blocks;
  }

  int64_t rows, columns;
};

// A fragment, and the file that holds some of its states.
struct Box {
  size_t color;
  std::string head, file;
  std::vector<std::string> lines;
  double x = 0, y = 0;  // a point of the fragment
  double height() const { return kHead + kText * static_cast<double>(lines.size() + 1) + kGap; }
};

class Drawing {
 public:
  Drawing(const Checkpoint& checkpoint, const std::string& name)
      : checkpoint_(checkpoint),
        name_(name),
        parameter_(parameter_named(checkpoint, name)),
        matrix_(parameter_) {
    if (numel(parameter_.shape) == 0) throw_error(name, ": has no elements to draw");
    const double ratio = static_cast<double>(matrix_.rows) / static_cast<double>(matrix_.columns);
    width_ = std::clamp(kLargest / std::max(ratio, 1.0), kSmallest, kLargest);
    height_ = std::clamp(kLargest * std::min(ratio, 1.0), kSmallest, kLargest);
    scale_x_ = width_ / static_cast<double>(matrix_.columns);
    scale_y_ = height_ / static_cast<double>(matrix_.rows);
  }

  Figure draw() {
    for (const ParameterShard& shard : *parameter_.shards)
      if (shard.pp_rank == parameter_.shards->front().pp_rank) draw_shard(shard);
    std::ranges::stable_sort(boxes_, {}, [](const Box& box) { return box.y; });
    draw_boxes();
    const std::string size = to_string(parameter_.shape);
    return {.title = printable(name_) + " " + size,
            .seen = checkpoint_.description + ". The tensor " + printable(name_) + " " + size +
                    " as a rectangle, cut into " + std::to_string(fragments_) +
                    " fragments. Each is joined to the file that holds it, with record, bytes and "
                    "offset.",
            .body = text_at(kLeft, kTop - 10, "tick", subtitle()) + sides() + body_ + links_,
            .bottom = bottom_,
            .width = std::max(text_left() - kLeft + longest_,
                              kTitleLetter * static_cast<double>(name_.size() + size.size() + 1))};
  }

 private:
  double x_of(int64_t column) const { return kLeft + scale_x_ * static_cast<double>(column); }
  double y_of(int64_t row) const { return kTop + 14 + scale_y_ * static_cast<double>(row); }
  double text_left() const { return kLeft + width_ + kBetween; }

  std::string subtitle() const {
    std::string text = checkpoint_.description;
    for (size_t i = 1; i < parameter_.pp_ranks.size(); ++i)
      text += (i == 1 ? "; copies on pp " : ", ") + std::to_string(parameter_.pp_ranks[i]);
    return text;
  }

  // The numbers of rows and columns, beside the rectangle.
  std::string sides() const {
    return text_at(kLeft - 8, kTop + 18 + height_ / 2, "tick end", std::to_string(matrix_.rows)) +
           text_at(kLeft + width_ / 2, kTop + 9, "tick mid", std::to_string(matrix_.columns));
  }

  // Draws a shard's fragments, as the weight has them, and makes their boxes. A rank that has all
  // of the tensor, as the ranks before it, adds no colour.
  void draw_shard(const ParameterShard& shard) {
    const ShardLayout slice = parameter_.slice(shard.tp_rank);
    const bool is_copy = parameter_.cut.replicated && shard.tp_rank > 0;
    const auto& weight = shard.states.find(kFp32State)->second;
    for (size_t f = 0; f < weight.fragments.size(); ++f) {
      const ShardFragment& fragment = weight.fragments[f];
      const auto blocks = matrix_.blocks(slice, fragment.begin, fragment.numel);
      if (blocks.empty()) continue;  // padding alone
      const size_t color = is_copy ? f : fragments_++;
      const Block& largest = *std::ranges::max_element(
          blocks, {}, [](const Block& block) { return block.rows * block.columns; });
      const double x = x_of(largest.column + largest.columns),
                   y = y_of(largest.row) + 0.7 * (y_of(largest.rows) - y_of(0));
      for (const auto& [row, column, rows, columns] : blocks)
        if (!is_copy)
          body_ += rectangle(x_of(column), y_of(row),
                             std::max(1.0, x_of(column + columns) - x_of(column) - 1),
                             std::max(1.0, y_of(row + rows) - y_of(row) - 1), series(color));
      if (!is_copy) label(shard, fragment, largest);
      add_boxes(shard, fragment, color, x - 6, y);
    }
  }

  // Names a fragment's rank on it, if there is room.
  void label(const ParameterShard& shard, const ShardFragment& fragment, const Block& block) {
    const bool ordinary = checkpoint_.kind == Checkpoint::Kind::kOrdinary;
    if (!ordinary || x_of(block.columns) - x_of(0) < 62 || y_of(block.rows) - y_of(0) < 24) return;
    const std::string text =
        "tp " + std::to_string(shard.tp_rank) + ", dp " + std::to_string(fragment.dp_rank);
    body_ += text_at(x_of(block.column) + 6, y_of(block.row) + 14, "on", text);
  }

  // Adds a box for each file with states of a fragment.
  void add_boxes(const ParameterShard& shard, const ShardFragment& fragment, size_t color, double x,
                 double y) {
    const size_t first = boxes_.size();
    std::vector<std::string> states = {std::string(kFp32State)};
    for (const auto& [state, held] : shard.states)
      if (state != kFp32State) states.push_back(state);
    for (const std::string& state : states) {
      const ShardState& held = shard.states.at(state);
      const auto same = std::ranges::find_if(held.fragments, [&](const ShardFragment& each) {
        return each.begin == fragment.begin && each.numel == fragment.numel;
      });
      if (same == held.fragments.end()) continue;
      const auto places = same->bytes->places(
          same->offset, static_cast<uint64_t>(same->numel) * element_size(held.dtype));
      for (size_t i = 0; i < places.size() && i < 2; ++i) {
        const FileRange& place = places[i];
        const std::string file =
            printable(fs::relative(place.file, folder_of(checkpoint_)).string());
        auto box = std::find_if(boxes_.begin() + static_cast<ptrdiff_t>(first), boxes_.end(),
                                [&](const Box& each) { return each.file == file; });
        if (box == boxes_.end())
          box = boxes_.insert(box, {color, head_of(shard, fragment, place.file), file, {}, x, y});
        box->lines.push_back(i > 0 ? "..." : line_of(state, place));
      }
    }
  }

  std::string head_of(const ParameterShard& shard, const ShardFragment& fragment,
                      const fs::path& file) const {
    const bool ordinary = checkpoint_.kind == Checkpoint::Kind::kOrdinary;
    return (ordinary ? rank_text(parameter_, shard, fragment, file) + ": " : "") + "elements " +
           std::to_string(fragment.begin) + " to " +
           std::to_string(fragment.begin + fragment.numel - 1) +
           (shard.shape == parameter_.shape ? "" : " of the slice");
  }

  static std::string line_of(const std::string& state, const FileRange& place) {
    const std::string record = place.record.substr(place.record.find('/') + 1);
    return printable(state) + ": " + std::to_string(place.size) + " bytes at " +
           std::to_string(place.offset) + (record.empty() ? "" : ", in " + printable(record)) +
           (place.dtype.empty() ? "" : ", " + place.dtype);
  }

  // Draws the boxes below each other, and the links to their fragments.
  void draw_boxes() {
    double y = kTop + 14;
    size_t drawn = 0;
    for (const Box& box : boxes_) {
      if (drawn == kMostBoxes) {
        put_text(y + kHead, "tick", "... and " + std::to_string(boxes_.size() - drawn) + " more");
        y += kText;
        break;
      }
      ++drawn;
      const double x = text_left() - 12, height = box.height() - kGap;
      body_ += rectangle(x, y, 4, height, series(box.color));
      links_ += path_at("M" + px(box.x) + " " + px(box.y) + "L" + px(x) + " " + px(y + height / 2),
                        "class=\"" + series(box.color) + "\" stroke-width=\"1.5\"") +
                rectangle(box.x - 3, box.y - 3, 6, 6, "paper");
      put_text(y + 13, "head", box.head);
      put_text(y + 13 + kText, "tick", box.file);
      for (size_t i = 0; i < box.lines.size(); ++i)
        put_text(y + 13 + kText * static_cast<double>(i + 2), "tick", box.lines[i]);
      y += box.height();
    }
    bottom_ = std::max(y, kTop + 14 + height_) - 30;
  }

  void put_text(double y, const std::string& style, const std::string& text) {
    body_ += text_at(text_left(), y, style, text);
    const double letter = style == "head" ? kHeadLetter : kLetter;
    longest_ = std::max(longest_, letter * static_cast<double>(text.size()));
  }

  const Checkpoint& checkpoint_;
  std::string name_;
  SavedParameter parameter_;
  Matrix matrix_;
  double width_, height_, scale_x_, scale_y_;  // of the rectangle; pixels for an element
  std::vector<Box> boxes_;
  size_t fragments_ = 0;
  std::string body_, links_;  // links lie on the body
  double bottom_ = 0, longest_ = 0;
};

}  // namespace

Figure parameter_figure(const std::string& path, const std::string& name) {
  const Checkpoint checkpoint = open_checkpoint(path, 4);
  return Drawing(checkpoint, name).draw();
}

}  // namespace anymesh
