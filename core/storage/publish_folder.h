#pragma once
// A folder that appears whole or not at all.

#include <string>

#include "core/base/file_system.h"

namespace tidepool::storage {

// Gives a folder that others wrote its name, whole or not at all: every file and folder in `tmp` is made
// durable, then it is renamed to `dir`; an older `dir` goes. kDataLoss: `tmp` is empty or not there.
Status PublishFolder(FileSystem& fs, const std::string& tmp, const std::string& dir);

// What a PublishFolder that was cut off has left: an older `dir` that it moved aside (`dir`.old) gets its
// name back if nothing else has it, or else goes.
Status FinishPublish(FileSystem& fs, const std::string& dir);

}  // namespace tidepool::storage
