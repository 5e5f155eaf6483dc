#include "bootstrap/agree.hpp"

#include "base/error.hpp"
#include "bootstrap/packing.hpp"
#include "bootstrap/rank_list.hpp"

#include <algorithm>
#include <map>

namespace heddle {
namespace {

using Settings = std::vector<Setting>;

Bytes pack(std::span<const Setting> settings) {
  Packer packer;
  packer.put(std::uint64_t{settings.size()});
  for (const Setting& setting : settings) packer.put(setting.name).put(setting.value);
  return packer.bytes();
}

Settings unpack(const Bytes& bytes) {
  Unpacker unpacker(bytes);
  Settings settings;
  for (std::uint64_t left = unpacker.number(); left > 0; --left) {
    std::string name = unpacker.text();
    settings.push_back({std::move(name), unpacker.text()});
  }
  unpacker.finish();
  return settings;
}

// In the order in which ranks name them; a setting that only some ranks have is in it too.
std::vector<std::string> names_of(const std::vector<Settings>& by_rank) {
  std::vector<std::string> names;
  for (const Settings& settings : by_rank) {
    for (const Setting& setting : settings) {
      if (std::find(names.begin(), names.end(), setting.name) == names.end()) names.push_back(setting.name);
    }
  }
  return names;
}

std::string value_of(const Settings& settings, std::string_view name) {
  const auto found = std::find_if(settings.begin(), settings.end(), [&](const Setting& s) { return s.name == name; });
  return found == settings.end() ? "absent" : found->value;
}

// "window bytes is 4096 on ranks 0-2, 8192 on ranks 3", or nothing if all agree.
std::string difference(const std::vector<Settings>& by_rank, std::string_view name) {
  std::map<std::string, std::vector<int>> holders;
  std::vector<std::string> values;  // by their first holder
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const std::string value = value_of(by_rank[rank], name);
    if (holders[value].empty()) values.push_back(value);
    holders[value].push_back(static_cast<int>(rank));
  }
  if (values.size() == 1) return {};
  std::string text;
  for (const std::string& value : values) {
    text += fmt::format("{} {} on ranks {}", text.empty() ? "" : ",", value, rank_list(holders[value]));
  }
  return fmt::format("{} is{}", name, text);
}

}  // namespace

void agree(Bootstrap& bootstrap, std::span<const Setting> mine) {
  std::vector<Settings> by_rank;
  for (const Bytes& bytes : bootstrap.all_gather(pack(mine), "agree on settings")) by_rank.push_back(unpack(bytes));
  std::string differences;
  for (const std::string& name : names_of(by_rank)) {
    const std::string text = difference(by_rank, name);
    if (!text.empty()) differences += (differences.empty() ? "" : "; ") + text;
  }
  if (!differences.empty()) fail(ErrorCode::mismatch, "ranks disagree on settings: {}", differences);
}

}  // namespace heddle
