#include "tools/report/html.h"

#include "framework/util/printable.h"
#include "tools/plot/plot.css.h"
#include "tools/report/page.css.h"

namespace anymesh {

std::string escaped(std::string_view text) {
  std::string html;
  for (const char c : printable(text, 2000, /*keep_lines=*/true)) {
    const char* const name = c == '&'    ? "&amp;"
                             : c == '<'  ? "&lt;"
                             : c == '>'  ? "&gt;"
                             : c == '"'  ? "&quot;"
                             : c == '\'' ? "&#39;"
                                         : nullptr;
    name ? html += name : html += c;
  }
  return html;
}

std::string element(const std::string& tag, const std::string& content,
                    const std::string& attributes) {
  return "<" + tag + (attributes.empty() ? "" : " " + attributes) + ">" + content + "</" + tag +
         ">";
}

std::string fold(const std::string& summary, const std::string& content, bool open) {
  return element("details", element("summary", summary) + content, open ? "open" : "") + "\n";
}

std::string absent(const std::string& html) {
  return element("p", html, "class=\"absent\"") + "\n";
}

void HtmlTable::add_row(const std::vector<std::string>& cells, const std::string& tag,
                        const std::string& style) {
  std::string row;
  for (const std::string& cell : cells) {
    const bool heads = tag == "th" || row.empty();
    const char* scope = tag == "th" ? "scope=\"col\"" : "scope=\"row\"";
    row +=
        element(heads ? "th" : "td", cell.empty() && !heads ? "&ndash;" : cell, heads ? scope : "");
  }
  row = element("tr", row, style.empty() ? "" : "class=\"" + style + "\"") + "\n";
  body_ += rows_++ == 0 ? element("thead", row) + "\n<tbody>\n" : row;
}

std::string HtmlTable::html(const std::string& style) const {
  return "<div class=\"scroll " + style + "\" tabindex=\"0\"><table>\n" + body_ +
         "</tbody></table></div>\n";
}

std::string swatch(const std::string& style) {
  return "<svg class=\"swatch\" viewBox=\"0 0 10 10\" aria-hidden=\"true\">"
         "<path d=\"M0 5h10\" stroke-width=\"10\" class=\"" +
         style + "\"/></svg>";
}

std::string html_page(const std::string& heading, const std::string& body) {
  const std::string title = escaped(heading);
  return kPageStart + ("<head>\n<meta charset=\"utf-8\">\n"
                       "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
                       "<link rel=\"icon\" href=\"data:,\">\n" +
                       element("title", title) + "\n" + element("style", kPlotStyle) +
                       element("style", kPageStyle) + "\n</head>\n<body><main>\n" +
                       element("h1", title) + "\n" + body + "</main></body>\n</html>\n");
}

}  // namespace anymesh
