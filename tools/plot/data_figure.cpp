#include <algorithm>
#include <memory>

#include "framework/data/blended_dataset.h"
#include "framework/data/gpt_dataset.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "tools/plot/figure.h"
#include "tools/plot/recorded_run.h"

namespace anymesh {
namespace {

constexpr int64_t kMostSamples = 8, kMostTokens = 14, kMostBorders = 150;
constexpr double kLane = 96, kThick = 20;  // from a lane to the next; of a lane's bar

// A run's training data. Places are in tokens.
class Stream {
 public:
  explicit Stream(const RunSettings& run) {
    const DataConfig& config = run.config.data;
    if (config.mock_data) throw_error("expected a run with --data-path, found --mock-data");
    const Blend blend = parse_blend(config.data_path);
    if (blend.prefixes.size() != 1)
      throw_error("expected one data set, --data-path blends ", blend.prefixes.size());
    const RunConfig& flags = run.config.run;
    const SampleCounts counts = sample_counts(0, run.plan.train_iters, run.plan.global_batch_size,
                                              flags.eval_interval, flags.eval_iters);
    const int64_t samples = run.config.batch.train_samples;
    corpus_ = std::make_shared<const IndexedDataset>(blend.prefixes[0]);
    part_ = split_documents(config.split, corpus_->size())[0];
    data_ = std::make_unique<GptDataset>(corpus_, part_, samples != 0 ? samples : counts.train,
                                         run.gpt.seq_length, static_cast<uint32_t>(flags.seed),
                                         "train");
    for (int64_t d = part_.first; d < part_.last; ++d)
      in_file_.push_back(in_file_.back() + corpus_->length(d));
  }

  const GptDataset& data() const { return *data_; }
  int64_t documents() const { return part_.size(); }
  int64_t epochs() const { return std::ssize(data_->document_order()) / documents(); }
  // The borders of the documents in the file, and in the stream.
  const std::vector<int64_t>& in_file() const { return in_file_; }
  std::vector<int64_t> in_stream() const {
    std::vector<int64_t> borders{0};
    for (const int32_t document : data_->document_order())
      borders.push_back(borders.back() + corpus_->length(document));
    return borders;
  }

  // A part of a document in a sample.
  struct Piece {
    int64_t document = 0, in_file = 0, tokens = 0;
  };

  // Returns what lies between the beginnings of a sample and of the next one.
  std::vector<Piece> pieces(int64_t sample) const {
    auto [entry, offset] = data_->positions()[sample];
    std::vector<Piece> pieces;
    for (int64_t left = data_->seq_length(); left > 0; ++entry, offset = 0) {
      const int64_t document = data_->document_order()[entry],
                    tokens = std::min(left, corpus_->length(document) - offset);
      if (tokens > 0)
        pieces.push_back({document, in_file_[document - part_.first] + offset, tokens});
      left -= tokens;
    }
    return pieces;
  }

 private:
  std::shared_ptr<const IndexedDataset> corpus_;
  DocumentRange part_;
  std::unique_ptr<GptDataset> data_;
  std::vector<int64_t> in_file_{0};
};

double top_of_lane(int number) { return kTop + 14 + kLane * number; }

std::string lane(int number, const std::string& label, const std::string& heading) {
  const double y = top_of_lane(number);
  return text_at(kLeft - 12, y + 15, "label end", label) + text_at(kLeft, y - 8, "tick", heading);
}

// Draws the documents between these borders, or one bar for them all if they are many.
std::string documents_at(std::vector<int64_t> borders, double y) {
  const Axis place{kLeft, kLeft + kWidth, 0, double(borders.back())};
  if (std::ssize(borders) > kMostBorders) borders = {0, borders.back()};
  std::string svg;
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    const double x = place.at(double(borders[i])), end = place.at(double(borders[i + 1]));
    if (end > x) svg += rectangle(x, y, std::max(end - x - 0.8, 0.3), kThick, "empty");
  }
  return svg;
}

std::string link(double x1, double y1, double x2, double y2, size_t color) {
  return path_at("M" + px(x1) + " " + px(y1) + "L" + px(x2) + " " + px(y2),
                 "class=\"" + series(color) + "\" stroke-width=\"1.2\"");
}

// Draws a sample in the file, in the stream and in the order of reading, and lines between them.
std::string sample_at(const Stream& stream, int64_t nth, int64_t samples) {
  const int64_t sample = stream.data().sample_order()[nth], length = stream.data().seq_length();
  const Axis file{kLeft, kLeft + kWidth, 0, double(stream.in_file().back())},
      whole{kLeft, kLeft + kWidth, 0, file.high * double(stream.epochs())},
      order{kLeft, kLeft + kWidth, 0, double(samples)};
  const double y0 = top_of_lane(0), y1 = top_of_lane(1), y2 = top_of_lane(2),
               from = order.at(double(nth)), width = order.at(double(nth + 1)) - from - 6,
               middle = whole.at((double(sample) + 0.5) * double(length));
  std::string svg = link(middle, y1 + kThick, from + width / 2, y2 - 22, nth), documents;
  double at = 0;
  for (const auto& [document, in_file, tokens] : stream.pieces(sample)) {
    const auto place = double(in_file), count = double(tokens);
    const double x = file.at(place), in_stream = whole.at(double(sample * length) + at),
                 part = width * count / double(length), piece = from + width * at / double(length);
    svg += link(file.at(place + count / 2), y0 + kThick,
                whole.at(double(sample * length) + at + count / 2), y1 - 22, nth) +
           rectangle(x, y0, std::max(file.at(place + count) - x, 2.0), kThick, series(nth)) +
           rectangle(in_stream, y1, std::max(whole.at(count) - kLeft, 2.0), kThick, series(nth)) +
           rectangle(piece, y2, std::max(part - 1, 0.5), kThick, series(nth));
    documents += (documents.empty() ? "" : ", ") + std::to_string(document);
    at += count;
  }
  const bool one = documents.find(',') == std::string::npos;
  documents = (one ? "document " : "of ") + documents;
  if (documents.size() > 12) documents = documents.substr(0, documents.rfind(',', 11)) + " ...";
  return svg + text_at(from, y2 + kThick + 14, "label", std::to_string(sample)) +
         text_at(from, y2 + kThick + 29, "tick", documents);
}

// Draws the first tokens of the sample that is read first: from `offset` on.
std::string tokens_at(const Stream& stream, int64_t offset, double y) {
  std::vector<int64_t> tokens(stream.data().seq_length() + 1);
  stream.data().sample(0, tokens);
  const int64_t count = std::min<int64_t>(kMostTokens, stream.data().seq_length());
  const double width = kWidth / double(kMostTokens);
  std::string svg;
  for (int64_t i = 0; i < count; ++i) {
    const double x = kLeft + width * double(i);
    svg += rectangle(x, y, width - 2, kThick, "empty") +
           text_at(x + width / 2 - 1, y + 14, "tick mid", std::to_string(tokens[i + offset]));
  }
  return svg;
}

std::string lanes(const Stream& stream) {
  const GptDataset& data = stream.data();
  const int64_t samples = std::min(kMostSamples, data.size());
  std::string svg = lane(0, "file",
                         string_printf("%ld documents to train on, %ld tokens", stream.documents(),
                                       stream.in_file().back())) +
                    documents_at(stream.in_file(), top_of_lane(0)) +
                    lane(1, "stream",
                         string_printf("%ld time%s all documents, shuffled and laid end to end",
                                       stream.epochs(), stream.epochs() > 1 ? "s" : "")) +
                    documents_at(stream.in_stream(), top_of_lane(1)) +
                    lane(2, "samples",
                         string_printf("the first %ld of %ld samples in the order of reading: "
                                       "pieces of %d tokens, shuffled",
                                       samples, data.size(), data.seq_length()));
  for (int64_t i = 0; i < samples; ++i) svg += sample_at(stream, i, samples);
  const double inputs = top_of_lane(2) + kThick + 66, labels = inputs + kThick + 4;
  return svg +
         text_at(kLeft, inputs - 8, "tick",
                 string_printf("the first tokens of sample %u, and the tokens that follow each",
                               data.sample_order()[0])) +
         text_at(kLeft - 12, inputs + 15, "label end", "inputs") + tokens_at(stream, 0, inputs) +
         text_at(kLeft - 12, labels + 15, "label end", "labels") + tokens_at(stream, 1, labels);
}

}  // namespace

Figure data_figure(const RecordedRun& recorded) {
  const RunSettings run = settings_of(recorded);
  return {string_printf("From documents to samples of %d tokens, with seed %lu", run.gpt.seq_length,
                        run.config.run.seed),
          "Documents in the order of the file; below, the stream of shuffled documents; below, "
          "samples in the order of reading. Lines lead from a sample's place in the file to its "
          "place in the stream and to its turn. At the bottom, inputs and labels: the same "
          "tokens, one later.",
          lanes(Stream(run)), top_of_lane(2) + 3 * kThick + 70};
}

}  // namespace anymesh
