#pragma once
// libtidepool_s3.so: stores in S3 by Arrow's S3FileSystem, loaded at run time where a config asks for one, so
// that no program links Arrow. Built where scripts/setup --s3 has put Arrow's libraries.

#include <memory>

#include "core/base/status.h"
#include "core/storage/checkpoint_store.h"

namespace tidepool::storage {

// What the module offers, by name.
// tidepool_s3_abi; TIDEPOOL_S3_INTERFACE: of the headers that both sides share.
using S3AbiFunction = int();
using S3Opened = StatusOr<std::unique_ptr<CheckpointStore>>;
using S3OpenFunction = void(const StorePlace*, S3Opened*);  // tidepool_s3_open

// kFailedPrecondition: there is no module, a library that it needs is missing, or it was built from other
// sources. A loaded module stays for the life of the process. Any thread.
StatusOr<std::unique_ptr<CheckpointStore>> OpenS3Store(const StorePlace& place);

}  // namespace tidepool::storage
