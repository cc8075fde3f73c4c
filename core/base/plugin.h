#pragma once
// One file a plug-in. A plug-in (a reward, a task, an environment, a loss, a model family, ...) is a function
// that the macro below names; the build lists the folders of each kind and writes their tables
// (cmake/plugins.cmake), so that a new file is in its table and no other file is edited:
//
//   TP_PLUGIN(Reward, anagram) { return {.doc = "...", .make = WithoutArgument<MyAnagram>}; }
//
// stands at the beginning of a line, in the namespace of the kind, whose header has the struct: RewardPlugin.
// Inside an anonymous namespace the linker would not find it, so that is an error of the compiler. Its name
// is the one that configs and commands take: small letters, digits and underscores.

#include <string_view>

namespace tidepool {

#define TP_PLUGIN(kind, name)                                                                               \
  struct kind##Plugin_##name##_place {                                                                      \
    static constexpr std::string_view Words() { return __PRETTY_FUNCTION__; }                               \
  };                                                                                                        \
  static_assert(!::tidepool::IsAnonymous(kind##Plugin_##name##_place::Words()),                             \
                "TP_PLUGIN stands in an anonymous namespace, where the build cannot find it; put it after " \
                "the end of that namespace");                                                               \
  kind##Plugin kind##Plugin_##name()

// Whether a __PRETTY_FUNCTION__ is of a place in an anonymous namespace, as g++ and clang write it.
constexpr bool IsAnonymous(std::string_view function) {
  return function.find("{anonymous}") != std::string_view::npos ||
         function.find("(anonymous namespace)") != std::string_view::npos;
}

// An entry of a table that the build writes, sorted by name.
template <typename T>
struct Plugin {
  const char* name;
  T (*make)();
  const char* file;  // that defines it: within the sources, or an absolute path
};

}  // namespace tidepool
