#pragma once
// Equal files are on the disk once, under several names (hard links). The bytes stay as long as one of the
// names does, so whoever removes a folder need not know who else has its files. No one writes into a file of
// a checkpoint once it has its name. People do write into final/ and best/ (save_pretrained, an editor):
// those share nothing.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/file_system.h"

namespace tidepool::storage {

// Each of `paths` below `dir` that is byte for byte the file of that path below `like` becomes another name
// of it. Best effort: where the disk cannot do it, or `like` has no such file, it stays the file that it is.
// Returns the bytes that are shared now.
int64_t ShareEqualFiles(FileSystem& fs, const std::string& like, const std::string& dir,
                        const std::vector<std::string>& paths);

// Makes `to` a folder with the weights of the model folder `from` under another name, and copies of its
// configuration and tokenizer, which people edit in place. All of them or none: an error leaves no `to`.
// kNotFound: `from` has no weights. Errors of FileSystem::Link, as between two disks.
Status LinkModel(FileSystem& fs, const std::string& from, const std::string& to);

// Makes `to` a copy of the model folder `from` for people, every file its own. Errors of FileSystem.
Status CopyModel(FileSystem& fs, const std::string& from, const std::string& to);

}  // namespace tidepool::storage
