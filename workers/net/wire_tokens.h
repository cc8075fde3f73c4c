#pragma once
// Tokens and rows of a batch between generated protobuf types and our structs: both travel as the bytes of
// core/sample/codec.h. wire.h carries the messages.

#include "core/base/ids.h"
#include "core/base/status.h"
#include "workers/net/messages.h"

namespace tidepool::v1 {
class Row;
class SampleId;
class Version;
}  // namespace tidepool::v1

namespace tidepool::workers {

void Put(const SampleId& in, v1::SampleId* out);
void Put(const Version& in, v1::Version* out);
SampleId Get(const v1::SampleId& in);
Version Get(const v1::Version& in);

// requires a row whose trajectory can be encoded
void ToWire(const BatchRow& in, v1::Row* out);
// kDataLoss: the bytes are no trajectory.
StatusOr<BatchRow> FromWire(const v1::Row& in);

}  // namespace tidepool::workers
