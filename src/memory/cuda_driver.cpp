#include "memory/cuda_driver.hpp"

#include "base/error.hpp"
#include "memory/cuda_vmm.hpp"

namespace heddle {
namespace {

// Any driver of the major version that the library was built with will do.
constexpr int kNeeded = CUDART_VERSION / 1000 * 1000;
constexpr const char* kNeededDriver = kNeeded >= 13000 ? "580" : "525";

// Fabric handles, and so the newest of these functions' versions, came with 12.4.
constexpr unsigned kFunctions = 12040;

template <class Function>
void find(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, kFunctions, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr) {
    fail(ErrorCode::system, "the CUDA driver has no function {}; needed: driver {} or newer", name, kNeededDriver);
  }
  function = reinterpret_cast<Function>(found);
}

CudaDriver find_all() {
  if (const std::string problem = cuda_problem(); !problem.empty()) fail(ErrorCode::system, "{}", problem);
  CudaDriver driver{};
  find("cuMemCreate", driver.create);
  find("cuMemRelease", driver.release);
  find("cuMemAddressReserve", driver.reserve);
  find("cuMemAddressFree", driver.free_range);
  find("cuMemMap", driver.map);
  find("cuMemUnmap", driver.unmap);
  find("cuMemSetAccess", driver.set_access);
  find("cuMemGetAllocationGranularity", driver.granularity);
  find("cuMemExportToShareableHandle", driver.export_handle);
  find("cuMemImportFromShareableHandle", driver.import_handle);
  find("cuMemRetainAllocationHandle", driver.retain_handle);
  find("cuGetErrorString", driver.error_string);
  return driver;
}

std::string version_name(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

std::string driver_problem(int found) {
  const std::string needed =
      fmt::format("needed: NVIDIA driver {} or newer (CUDA {})", kNeededDriver, version_name(kNeeded));
  if (found == 0) return fmt::format("no CUDA driver on this machine (libcuda.so.1); {}", needed);
  if (found < kNeeded) return fmt::format("the CUDA driver found is for CUDA {}; {}", version_name(found), needed);
  return "";
}

std::string cuda_problem() {
  int found = 0;
  if (cudaDriverGetVersion(&found) != cudaSuccess) found = 0;
  if (std::string problem = driver_problem(found); !problem.empty()) return problem;
  int devices = 0;
  const cudaError_t counted = cudaGetDeviceCount(&devices);
  if (counted != cudaSuccess) return fmt::format("the CUDA driver finds no GPU: {}", cudaGetErrorString(counted));
  return devices > 0 ? "" : "the CUDA driver finds no GPU";
}

const CudaDriver& cuda_driver() {
  static const CudaDriver driver = find_all();
  return driver;
}

std::mutex& mapping_calls() {
  static std::mutex of_process;
  return of_process;
}

void check_cuda(cudaError_t error, std::string_view doing) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // an error of this call must not be taken for one of the next
  fail(ErrorCode::system, "{}: {} (CUDA error {})", doing, cudaGetErrorString(error), static_cast<int>(error));
}

std::string describe(CUresult result) {
  const char* text = nullptr;
  cuda_driver().error_string(result, &text);
  return fmt::format("{} (CUDA driver error {})", text == nullptr ? "unknown" : text, static_cast<int>(result));
}

void check_driver(CUresult result, std::string_view doing) {
  if (result != CUDA_SUCCESS) fail(ErrorCode::system, "{}: {}", doing, describe(result));
}

CudaDevice::CudaDevice(int device) {
  check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
}

CudaDevice::~CudaDevice() { cudaSetDevice(before_); }

}  // namespace heddle
