#include "framework/util/format.h"
#include "tools/report/sections.h"

namespace anymesh {
namespace {

std::string counted(size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

std::string report_page(const std::string& title, const std::vector<std::filesystem::path>& folders,
                        const RunFolder& folder) {
  std::vector<std::string> paths, names;
  for (const std::filesystem::path& path : folders) {
    paths.push_back(element("code", escaped(path.string())));
    names.push_back((path / "").lexically_normal().parent_path().filename().string());
  }
  const std::string lead = counted(folder.runs.size(), "run") + " and " +
                           counted(folder.checkpoints.size(), "checkpoint") + " in " +
                           joined(paths);
  std::string links, body;
  for (const auto& make :
       {problems_section, runs_section, loss_section, mesh_section, timeline_section,
        memory_section, communication_section, checkpoints_section, flags_section}) {
    const auto& [heading, explanation, content] = make(folder);
    if (heading.empty()) continue;
    std::string id = heading;
    std::ranges::replace(id, ' ', '-');
    links += element("a", heading, "href=\"#" + id + "\"") + "\n";
    body += "<section id=\"" + id + "\">\n" + element("h2", heading) + "\n" +
            (explanation.empty() ? "" : element("p", explanation, "class=\"explain\"") + "\n") +
            content + "</section>\n";
  }
  return html_page(title.empty() ? joined(names) : title,
                   element("p", lead, "class=\"lead\"") + "\n" +
                       element("nav", links, "aria-label=\"Sections\"") + "\n" + body);
}

}  // namespace anymesh
