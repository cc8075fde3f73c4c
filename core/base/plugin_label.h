#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/base/plugin.h"

namespace tidepool {

// "loss ppo (core/algorithms/losses/ppo.cc)", for messages about a plug-in of `table`.
template <typename T>
std::string PluginLabel(std::string_view kind, std::span<const Plugin<T>> table, std::string_view name) {
  std::string label = std::string(kind).append(" ").append(name);
  for (const Plugin<T>& plugin : table) {
    if (name == plugin.name) label += std::string(" (") + plugin.file + ")";
  }
  return label;
}

}  // namespace tidepool
