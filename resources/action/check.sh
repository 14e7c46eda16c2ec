# Run the tests and predictions of one commit, in its folder: bash check.sh FOLDER
#
# Of the environment: PYTHON, TESTS (arguments of pytest) and ESTIMATES (arguments of gpudash estimate, a line each).
# FOLDER gets their reports. Exit code 1 when one of them is beyond its budget or fails, whatever the others are.
set -u
folder=$1
failed=0
if [ -n "${TESTS// /}" ]; then
  read -r -a arguments <<< "$TESTS"
  "$PYTHON" -m pytest "${arguments[@]}" --gpu-memory-report="$folder/tests.json" \
    --gpu-memory-sarif="$folder/tests.sarif" --junit-xml="$folder/tests.junit.xml" || failed=1
fi
number=0
while IFS= read -r line; do
  if [ -z "${line// /}" ]; then
    continue
  fi
  number=$((number + 1))
  read -r -a arguments <<< "$line"
  name="$folder/estimate-$number"
  reports=(--json "--junit=$name.junit.xml" "--sarif=$name.sarif")
  # Ours come first: behind two dashes they would be the program's.
  "$PYTHON" -m gpudash estimate "${reports[@]}" "${arguments[@]}" > "$name.json" || failed=1
done <<< "$ESTIMATES"
exit "$failed"
