// HTML as text. Whatever comes from a file goes through escaped().
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace anymesh {

// The start of every page of ours.
inline constexpr const char* kPageStart =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<!-- anymesh report -->\n";

// Returns text for an element or an attribute's value: markup becomes harmless, and characters that
// cannot be printed are shown as \x1b. Shortens a text of more than 2000 bytes in its middle.
std::string escaped(std::string_view text);

// element("td", "6.1", "class=\"low\"") is <td class="low">6.1</td>. The content is HTML.
std::string element(const std::string& tag, const std::string& content,
                    const std::string& attributes = "");
// A fold that the reader opens.
std::string fold(const std::string& summary, const std::string& content, bool open = false);
// A line in place of what the folder has no source for.
std::string absent(const std::string& html);

// A table whose first column names the rows. All texts are HTML; an empty one is shown as a dash.
// It scrolls sideways by itself.
class HtmlTable {
 public:
  explicit HtmlTable(const std::vector<std::string>& header) { add_row(header, "th", ""); }
  void add(const std::vector<std::string>& cells, const std::string& style = "") {
    add_row(cells, "td", style);
  }
  size_t rows() const { return rows_ - 1; }
  std::string html(const std::string& style = "") const;

 private:
  void add_row(const std::vector<std::string>& cells, const std::string& tag,
               const std::string& style);

  size_t rows_ = 0;
  std::string body_;
};

// A square in the colour of a class of svg.h: a series, or "hair".
std::string swatch(const std::string& style);

// The whole page. `heading` is text, `body` is HTML.
std::string html_page(const std::string& heading, const std::string& body);

}  // namespace anymesh
