// TILEWISE_HD marks what host and device code share.
#ifndef TILEWISE_CORE_HD_H_
#define TILEWISE_CORE_HD_H_

#if defined(__CUDACC__)
#define TILEWISE_HD __host__ __device__
#else
#define TILEWISE_HD
#endif

#endif  // TILEWISE_CORE_HD_H_
