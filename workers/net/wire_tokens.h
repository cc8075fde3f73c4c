#pragma once
// Tokens and rows of a batch between generated protobuf types and our structs. wire.h carries the messages.

#include "core/base/ids.h"
#include "core/base/status.h"
#include "workers/net/messages.h"

namespace tidepool::v1 {
class Row;
class SampleId;
class Tokens;
class Version;
}  // namespace tidepool::v1

namespace tidepool::workers {

void Put(const SampleId& in, v1::SampleId* out);
void Put(const Version& in, v1::Version* out);
void Put(const TokenRecord& in, v1::Tokens* out);
SampleId Get(const v1::SampleId& in);
Version Get(const v1::Version& in);
TokenRecord Get(const v1::Tokens& in);

void ToWire(const BatchRow& in, v1::Row* out);
// kInvalidArgument: the mask is not as long as the response.
StatusOr<BatchRow> FromWire(const v1::Row& in);

}  // namespace tidepool::workers
