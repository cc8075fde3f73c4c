#pragma once
// The call into a plug-in that a thread is in, for whoever reads the log of a process that such a call ends.
//
// A reward or a game is code of others in a process of ours. If it crashes, a signal is all that is left of
// the process, so that nothing would name the plug-in or what it was given. TellCrashes() makes a signal that
// ends the process, and an exit() out of such a call, write a last line to stderr first:
//
//   error: the process was killed by SIGSEGV while it ran reward closest_word
//   (core/tasks/rewards/closest_word.cc) on sample 3.0.1 (question 3); correct it and build again
//
// That line is for people. Whoever started the process hands it a file for the name of the plug-in alone
// (workers/controller/launcher.h), because a plug-in may write lines of that form to stderr as well.
//
//   const RunningCall call("reward closest_word (...)", "sample 3.0.1 (question 3)");
//   verdict = reward(input);
//
// How long it takes is for somebody else to watch, or a LimitedCall (core/base/limited_call.h).

#include <array>
#include <concepts>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace tidepool {

// The words that are in a log for such a call; `what`: the plug-in with its file, `on`: what it was given.
std::string WhileItRan(std::string_view what, std::string_view on);

// A last line without how the process ended, for whoever saw that: "while it ran ...".
std::string WithoutHow(std::string line);

// What a shell says of a process that ended with this last line: 128 and the signal, or else 3.
int ExitCodeOf(std::string_view line);

// A line that is put together where no memory may be allocated, as in a signal handler. What does not fit is
// cut.
class LineBuffer {
 public:
  LineBuffer& Add(std::string_view text);
  LineBuffer& Add(int64_t number);
  LineBuffer& Add(uint64_t number);
  // In quotes, as a value of a log (observe::LogValue).
  LineBuffer& AddQuoted(std::string_view text);
  // The time of day of now, in UTC: "2026-01-31T12:00:00.123Z".
  LineBuffer& AddNow();
  void End() { text_[size_++] = '\n'; }  // once, at the end
  [[nodiscard]] std::string_view text() const { return {text_.data(), size_}; }

 private:
  LineBuffer& AddDigits(int64_t number, size_t least);
  std::array<char, 4096> text_;  // what a pipe takes in one piece
  size_t size_ = 0;
};

// Words that are made when a call is told of, so that a call that comes back does not pay for them. `write`
// may run in a signal handler, so it uses what a LineBuffer offers and nothing else.
struct LaterWords {
  void (*write)(const void* of, LineBuffer& out);
  const void* of;
};

// Belongs to the thread that made it; a thread's calls end in the opposite order. It makes no words, so that
// it is cheap beside a step of a control task: what it is given has to live as long.
class RunningCall {
 public:
  RunningCall(std::string_view what, std::string_view on);
  RunningCall(std::string_view what, LaterWords on);
  template <std::same_as<std::string> Passing>
  RunningCall(std::string_view what, Passing&& on) = delete;
  template <std::same_as<std::string> Passing, typename On>
  RunningCall(Passing&& what, const On& on) = delete;
  ~RunningCall();
  // What `body` returns, a Status. `code`, in words that name the plug-in: it threw.
  template <typename Body>
  Status Run(StatusCode code, Body&& body) const {
    try {
      return body();
    } catch (const std::exception& e) {
      return Status(code, std::string(what_) + " threw an exception: " + e.what());
    } catch (...) {
      return Status(code, std::string(what_) + " threw something that is no std::exception");
    }
  }
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;

  // From now on exit() in a call writes the line of the thread that calls it, and ends the process with exit
  // code 3: that of the plug-in is not the program's. SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT write that
  // of the thread that they hit, and then do what they did before. Once is enough; a thread's first
  // RunningCall after it gives it a stack of its own for that, because a crash may be a stack that is full.
  // `report`: an open file that the plug-in's name is added to as a line, whose owner reads the last one when
  // the process has ended; negative: none. A process that is forked from this one says nothing: a plug-in may
  // have children that end as they like.
  static void TellCrashes(int report = -1);
  // For a process that ends because of a plug-in in another way: adds its name to that file.
  static void Blame(std::string_view what);
  // Files that the last line is added to beside stderr, for a process whose end others have to understand:
  // its log, as a line of it (core/observe/log.h) with event=died_in_call and this context, and one that
  // holds nothing else. Paths; empty: none. Before the calls.
  static void TellIn(std::string log, std::string last_words, std::string context = "");
  // That last line goes into this file, and not to stderr: whoever started this process tells it.
  static void TellOnlyIn(std::string last_words);
  // What is written to stderr below the last line, and into no file: how to go on. Empty: nothing.
  static void TellAfterwards(std::string line);
  // Ends the process because of a call that does not come back, of the plug-in `what`, with exit code 3: the
  // last line is "error: " and `why`. For any thread; a disk or a terminal that does not answer holds it up
  // for two seconds.
  [[noreturn]] static void End(std::string_view what, std::string_view why);

 private:
  friend void TellRunning(std::string_view how);
  const std::string_view what_, on_;
  const LaterWords later_;  // in the place of on_, if there are any
  const RunningCall* outer_;
};

}  // namespace tidepool
