#pragma once
// What files take of the disk. A file may have several names (hard links: share_files.h), and holes, so this
// is not the sum of sizes. What cannot be looked at counts nothing. Any thread.

#include <cstdint>
#include <string>
#include <vector>

namespace tidepool::storage {

// Of a file, or of a folder with all below it; a file with several names there counts once.
int64_t DiskBytes(const std::string& path);

// Bytes that come free where `paths` (files, folders) are removed, one after the other: a file with several
// names counts at the last of them, and only if all of them go.
std::vector<int64_t> FreedBytes(const std::vector<std::string>& paths);

}  // namespace tidepool::storage
