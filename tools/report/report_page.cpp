#include "tools/report/report_page.h"

#include "framework/util/format.h"
#include "tools/report/html.h"
#include "tools/report/sections.h"

namespace anymesh {
namespace {

// Returns links to the page's sections.
std::string contents_of(const std::string& body) {
  constexpr std::string_view kStart = "<section id=\"", kHeading = "<h2>";
  std::string links;
  for (size_t at = 0; (at = body.find(kStart, at)) != std::string::npos;) {
    at += kStart.size();
    const size_t heading = body.find(kHeading, at) + kHeading.size();
    links += element("a", body.substr(heading, body.find('<', heading) - heading),
                     "href=\"#" + body.substr(at, body.find('"', at) - at) + "\"") +
             "\n";
  }
  return element("nav", links, "aria-label=\"Sections\"") + "\n";
}

}  // namespace

std::string report_page(const std::string& title, const std::vector<std::filesystem::path>& folders,
                        const RunFolder& folder) {
  std::vector<std::string> paths, names;
  for (const std::filesystem::path& path : folders) {
    paths.push_back(element("code", escaped(path.string())));
    names.push_back((path / "").lexically_normal().parent_path().filename().string());
  }
  const size_t runs = folder.runs.size(), checkpoints = folder.checkpoints.size();
  const std::string lead =
      element("p",
              std::to_string(runs) + (runs == 1 ? " run" : " runs") + " and " +
                  std::to_string(checkpoints) +
                  (checkpoints == 1 ? " checkpoint" : " checkpoints") + " in " + joined(paths),
              "class=\"lead\"") +
      "\n";
  const std::string body = problems_section(folder) + runs_section(folder) + loss_section(folder) +
                           mesh_section(folder) + timeline_section(folder) +
                           memory_section(folder) + communication_section(folder) +
                           checkpoints_section(folder) + flags_section(folder);
  return html_page(title.empty() ? joined(names) : title, lead + contents_of(body), body);
}

}  // namespace anymesh
