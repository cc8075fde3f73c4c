#pragma once
// TensorBoard event files, written without TensorFlow or protobuf.
//
// A file is a sequence of records (tensorflow/core/lib/io/record_writer.h):
//   uint64 length | uint32 masked crc32c(length) | bytes | uint32 masked crc32c(bytes)
// little-endian, masked(c) = rotate_right(c, 15) + 0xa282ead8. Each record is an Event protobuf:
//   double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
//   Summary { repeated Value value = 1; }  Value { string tag = 1; float simple_value = 2; }

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/observe/append_file.h"

namespace tidepool::observe {

class TensorBoardWriter {
 public:
  // Makes folder/events.out.tfevents.<seconds>.<name>; `unix_s` is the time of creation, which orders
  // the files of one folder (a resumed run adds a file).
  static StatusOr<TensorBoardWriter> Create(const std::string& folder, double unix_s,
                                            const std::string& name = "tidepool");
  // All scalars of a step in one record. Values that are not finite are kept: TensorBoard shows them.
  Status Write(int64_t step, double unix_s, const std::map<std::string, double>& scalars);
  [[nodiscard]] const std::string& path() const { return file_.path(); }

 private:
  explicit TensorBoardWriter(AppendFile file) : file_(std::move(file)) {}
  Status Record(std::string_view event);
  AppendFile file_;
};

}  // namespace tidepool::observe
