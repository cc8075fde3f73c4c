#pragma once
// One file a plug-in. A plug-in (a reward, a task, an environment, a loss, a model family, ...) is a function
// that the macro below names; the build lists the folders of each kind and writes their tables
// (cmake/plugins.cmake), so that a new file is in its table and no other file is edited:
//
//   TP_PLUGIN(Reward, anagram) { return {.doc = "...", .make = WithoutArgument<MyAnagram>}; }
//
// stands at the beginning of a line, in the namespace of the kind, whose header has the struct: RewardPlugin.
// Not inside an anonymous namespace: the linker would not find it. Its name
// is the one that configs and commands take: small letters, digits and underscores.

namespace tidepool {

#define TP_PLUGIN(kind, name) kind##Plugin kind##Plugin_##name()

// An entry of a table that the build writes, sorted by name.
template <typename T>
struct Plugin {
  const char* name;
  T (*make)();
  const char* file;  // that defines it: within the sources, or an absolute path
};

}  // namespace tidepool
