// The CUDA driver's own functions, found when they are first needed: the library loads on machines without a driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <mutex>
#include <string>
#include <string_view>

namespace heddle {

struct CudaDriver {
  decltype(&::cuMemCreate) create;
  decltype(&::cuMemRelease) release;
  decltype(&::cuMemAddressReserve) reserve;
  decltype(&::cuMemAddressFree) free_range;
  decltype(&::cuMemMap) map;
  decltype(&::cuMemUnmap) unmap;
  decltype(&::cuMemSetAccess) set_access;
  decltype(&::cuMemGetAllocationGranularity) granularity;
  decltype(&::cuMemExportToShareableHandle) export_handle;
  decltype(&::cuMemImportFromShareableHandle) import_handle;
  decltype(&::cuMemRetainAllocationHandle) retain_handle;
  decltype(&::cuGetErrorString) error_string;
};

/// Throws Error{system} with cuda_problem() if there is no usable driver.
const CudaDriver& cuda_driver();

/// Why a driver for CUDA `found` (13000 = 13.0; 0: there is none) will not do, with what is needed; empty: it will.
std::string driver_problem(int found);

std::mutex& mapping_calls();

/// A call about mappings, one of the process at a time: threads that unmapped one allocation at the same moment damaged
/// the host's heap, inside cuMemUnmap (driver 580.159, worlds of 3 and 8 threads on two GPUs; AddressSanitizer's report).
template <class Function, class... Arguments>
CUresult in_turn(Function function, Arguments... arguments) {
  const std::lock_guard lock(mapping_calls());
  return function(arguments...);
}

/// Throw Error{system} that says what was being done.
void check_cuda(cudaError_t, std::string_view doing);
void check_driver(CUresult, std::string_view doing);

std::string describe(CUresult);

/// Makes a device this thread's current one, for its scope.
class CudaDevice {
 public:
  explicit CudaDevice(int device);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;

 private:
  int before_ = 0;
};

}  // namespace heddle
