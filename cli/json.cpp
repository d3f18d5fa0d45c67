#include "cli/json.h"

namespace tilewise::cli {

Json object(std::initializer_list<Field> fields) {
  Json made = Json::object();
  for (const Field& field : fields) made[field.key] = field.value;
  return made;
}

}  // namespace tilewise::cli
