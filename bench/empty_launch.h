// A kernel that does nothing: what a launch costs the host.
#ifndef TILEWISE_BENCH_EMPTY_LAUNCH_H_
#define TILEWISE_BENCH_EMPTY_LAUNCH_H_

namespace tilewise {

bool launch_empty();  // on the default stream; false where it failed

}  // namespace tilewise
#endif  // TILEWISE_BENCH_EMPTY_LAUNCH_H_
