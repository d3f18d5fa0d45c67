// The HTML report of attend: one file, nothing loaded from elsewhere.
#ifndef TILEWISE_CLI_REPORT_H_
#define TILEWISE_CLI_REPORT_H_

#include <string>

#include "cli/attend_input.h"
#include "cli/device.h"
#include "cli/picture.h"

namespace tilewise::cli {

struct ReportInput {
  const Json& result;  // as printed by --json
  const AttendInput& input;
  const Tensors& tensors;
  const ForwardParams& params;
  const Plan& plan;  // forward
  const Device& device;
  std::string sweep;  // JSON lines of `tilewise bench --json`, or ""
};

Status write_report(const std::string& path, const ReportInput& report);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_REPORT_H_
