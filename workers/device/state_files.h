#pragma once
// The parts of a trainer's state as files: those of a checkpoint, and a state that is parked on disk while
// another role needs its memory (train.offload_optimizer). Not thread-safe, but CopyTo may run on another
// thread while nothing else does.
//
// A part is the file NAME.bin, or, where ranks share it (train.zero), files NAME.FROM-TO.bin of the bytes
// that each has of it. Where the model is cut between ranks (train.mesh.tp), NAME.tpRofN.bin or
// NAME.tpRofN.FROM-TO.bin, and where experts are divided (train.mesh.ep) NAME.epRofN.bin, with the index of
// that part of the model (core/model/cut.h). So a checkpoint says
// by its names who wrote what, and can be read whatever the mesh was and is.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/device/byte_store.h"
#include "core/storage/manifest_file.h"
#include "core/train/trainer.h"

namespace tidepool::workers {

// Blocks of zeros take no room on the disk (holes of the file).
// kUnavailable, kResourceExhausted: the file cannot be made, or not be written whole.
Status WritePart(const std::string& path, const device::ByteSource& bytes);
// kNotFound, kUnavailable, kDataLoss: it is not there, cannot be read, or has another size.
Status ReadPart(const std::string& path, const device::ByteStore& bytes);
std::string PartFile(const train::NamedBytes& part);
// Fills `part` from the files of a checkpoint's folder `dir`, however the part is cut up there. `spec`: of
// the model. `manifest`:
// what the checkpoint has (paths from its own folder, of which `dir` is trainer/): other files are not its
// own, and those that are read are compared with it, whole. Null: files that were compared when they came,
// all of this folder. Errors of ReadPart; kDataLoss also where some byte of the part is in no file, or in
// several, or a file is not the manifest's.
Status ReadShared(const std::string& dir, const train::NamedBytes& part, const model::ModelSpec& spec,
                  const std::vector<storage::ManifestFile>* manifest);
// SaltedSum of the bytes.
uint64_t DigestOf(const device::ByteSource& bytes, uint64_t salt = 0);

// Parts are those of Actor::State but "weights", which stay in memory.
class ParkedState {
 public:
  explicit ParkedState(std::string dir) : dir_(std::move(dir)) {}
  ~ParkedState() { Forget(); }
  ParkedState(const ParkedState&) = delete;
  ParkedState& operator=(const ParkedState&) = delete;

  [[nodiscard]] bool holds() const { return !files_.empty(); }
  [[nodiscard]] int64_t bytes() const;  // of the parts
  // Errors of WritePart: then nothing is parked, and nothing is left of it.
  Status Write(const std::vector<train::NamedBytes>& state);
  // Into `state`. Errors of ReadPart; kDataLoss also where a file is not what was written, by its digest.
  Status Read(const std::vector<train::NamedBytes>& state) const;
  // The files of a checkpoint, with no more memory than a piece of one; returns their names. part: only what
  // no other rank has. Errors as of Read and Write.
  StatusOr<std::vector<std::string>> CopyTo(const std::string& dir, bool part) const;
  void Forget();  // removes the files

 private:
  struct Parked {
    uint64_t digest = 0;
    bool piece = false;  // of a part that ranks share
    int64_t bytes = 0;
  };
  [[nodiscard]] std::string PathOf(const std::string& file) const { return dir_ + "/" + file; }

  const std::string dir_;
  bool made_ = false;                    // the folder was
  std::map<std::string, Parked> files_;  // by name
};

}  // namespace tidepool::workers
