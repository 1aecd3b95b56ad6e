#include "tools/report/html.h"

#include <iterator>

#include "framework/util/format.h"
#include "framework/util/printable.h"
#include "tools/plot/svg.h"

namespace anymesh {

namespace {

// Its classes differ from those of the plots.
constexpr const char* kPageStyle = R"(<style>
:root{color-scheme:light dark;--page:#fff;--ink:#1f2328;--soft:#59636e;--line:#d6dbe1;--band:#f5f7f9;
--accent:#0b62ad;--good:#1a6b43;--warn:#9a4a00}
@media(prefers-color-scheme:dark){:root{--page:#12161c;--ink:#e4e8ee;--soft:#9aa5b3;--line:#333c48;
--band:#1a2029;--accent:#6cb2f2;--good:#5fc08b;--warn:#f0a35e}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,'Segoe UI','Helvetica Neue',Arial,sans-serif;
-webkit-text-size-adjust:100%}
main{max-width:70rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0;overflow-wrap:anywhere;text-wrap:balance}
h2{font-size:1.15rem;margin:2.5rem 0 .25rem}
p{margin:.25rem 0 .75rem;max-width:46rem;overflow-wrap:anywhere}
.explain,.lead{color:var(--soft)}
.absent{color:var(--soft);border-left:3px solid var(--line);padding-left:.75rem}
.problem{border-left:3px solid var(--warn);padding-left:.75rem}
code,pre{font:.87em/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code{background:var(--band);border-radius:4px;padding:.1em .3em;overflow-wrap:anywhere}
pre{background:var(--band);border-radius:6px;padding:.75rem;overflow-x:auto;margin:.5rem 0}
nav{display:flex;flex-wrap:wrap;gap:.25rem 1rem;margin:1rem 0 0;font-size:.95rem}
a{color:var(--accent);text-underline-offset:.15em}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--accent);
outline-offset:2px}
.scroll{overflow-x:auto;margin:.5rem 0;border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.4rem .75rem;text-align:left;vertical-align:top;border-top:1px solid var(--line)}
tr:first-child>*{border-top:0}
thead th,thead th:first-child{font-weight:600}
thead th{background:var(--band);white-space:nowrap;vertical-align:bottom}
th:first-child,td:first-child{position:sticky;left:0;background:var(--page);font-weight:500;
min-width:8rem;max-width:16rem}
thead th:first-child{background:var(--band)}
td{max-width:24rem;overflow-wrap:break-word;min-width:5.5rem}
.prose td{min-width:11rem}
tr.differs>*{background:var(--band)}
small{display:block;color:var(--soft);font-size:.85em}
.good{color:var(--good)}.warn{color:var(--warn);font-weight:600}
.swatch{width:.75em;height:.75em;border-radius:2px;margin-right:.4em}
figure{margin:.75rem 0;padding-right:.5rem;overflow-x:auto;border:1px solid var(--line);border-radius:8px}
figure svg{display:block;height:auto;overflow:visible}
@media(min-width:60rem){figure svg{max-width:100%}}
details{margin:.5rem 0}
summary{cursor:pointer;padding:.25rem 0;overflow-wrap:anywhere}
.timeline{margin:.75rem 0 1.5rem}
.lane{display:grid;grid-template-columns:4.2rem 1fr;align-items:center;gap:.5rem;margin:3px 0;
font-size:.85rem;color:var(--soft);white-space:nowrap}
.lane svg{display:block;width:100%;height:26px;background:var(--band);border-radius:4px}
.ruler{display:flex;justify-content:space-between}
.key{display:flex;flex-wrap:wrap;gap:.15rem 1rem;font-size:.85rem;color:var(--soft);
padding:0;margin:.5rem 0;list-style:none}
@media(max-width:480px){main{padding:1rem .75rem 3rem}
.lane{grid-template-columns:3.2rem 1fr}
th,td{padding:.35rem .5rem}th:first-child,td:first-child{min-width:6.5rem;max-width:8.5rem}}
@media print{.scroll,figure,pre{overflow:visible}details>*{display:block}}
</style>
)";

// Returns the style sheet of the plots, which holds for the page's other drawings too.
std::string plot_style() {
  const std::string svg = svg_begin(1, 1, "", ""), end = "</style>\n";
  const size_t begin = svg.find("<style>");
  return svg.substr(begin, svg.find(end) + end.size() - begin);
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string html;
  for (const char c : printable(text, 2000, /*keep_lines=*/true)) switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        html += c;
    }
  return html;
}

std::string element(const std::string& tag, const std::string& content,
                    const std::string& attributes) {
  return "<" + tag + (attributes.empty() ? "" : " " + attributes) + ">" + content + "</" + tag +
         ">";
}

std::string section(const std::string& heading, const std::string& explanation,
                    const std::string& content) {
  std::string id;
  for (const char c : heading) id += c == ' ' ? '-' : c;
  return "<section id=\"" + id + "\">\n" + element("h2", heading) +
         (explanation.empty() ? "" : "\n" + element("p", explanation, "class=\"explain\"")) + "\n" +
         content + "</section>\n";
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
  for (size_t i = 0; i < columns_; ++i) {
    const bool heads = tag == "th" || i == 0;
    const char* scope = tag == "th" ? "scope=\"col\"" : "scope=\"row\"";
    row += element(heads ? "th" : "td", cells[i], heads ? scope : "");
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

std::string bytes_text(double bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  for (; bytes >= 999.5 && unit + 1 < std::size(units); ++unit) bytes /= 1000;
  return string_printf(unit == 0 ? "%.0f %s" : "%.3g %s", bytes, units[unit]);
}

std::string html_page(const std::string& heading, const std::string& lead,
                      const std::string& body) {
  const std::string title = escaped(heading);
  return kPageStart +
         ("<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
          "<link rel=\"icon\" href=\"data:,\">\n" +
          element("title", title) + "\n" + plot_style() + kPageStyle + "</head>\n<body><main>\n" +
          element("h1", title) + "\n" + lead + body + "</main></body>\n</html>\n");
}

}  // namespace anymesh
