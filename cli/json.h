// JSON as the command writes it: keys in the order in which they were set.
#ifndef TILEWISE_CLI_JSON_H_
#define TILEWISE_CLI_JSON_H_

#include <initializer_list>
#include <nlohmann/json.hpp>

namespace tilewise::cli {

using Json = nlohmann::ordered_json;

// Json's own braces make a constructor for each length of a key and type of a value: a third of a unit's
// compile time.
struct Field {
  const char* key;
  Json value;
};
Json object(std::initializer_list<Field> fields);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_JSON_H_
