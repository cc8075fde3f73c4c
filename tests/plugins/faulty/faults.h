#pragma once
// What the plug-ins of this folder do wrong, by a word.

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

namespace tidepool {

// crash, exit, throw, hang: does so; quit: without a word to anybody, by _exit(). Others: nothing.
inline void DoWrong(const std::string& how) {
  if (how == "crash") std::raise(SIGSEGV);
  if (how == "exit") std::exit(0);
  if (how == "quit") ::_exit(0);
  if (how == "throw") throw std::runtime_error("no such place");
  if (how == "late") std::this_thread::sleep_for(std::chrono::seconds(2));
  if (how == "hang") std::fprintf(stderr, "it hangs\n");
  while (how == "hang") std::this_thread::sleep_for(std::chrono::seconds(1));
}

}  // namespace tidepool
