"""Print the columns of a CSV file with their smallest and largest values, and write them to summary.txt."""

import csv
import sys

with open(sys.argv[1], newline="") as file:
    rows = list(csv.DictReader(file))
lines = [f"{len(rows)} rows"]
for name in rows[0] if rows else []:
    values = [row[name] for row in rows]
    lines.append(f"{name}: {min(values)} to {max(values)}")
print("\n".join(lines))
with open("summary.txt", "w") as file:
    file.write("\n".join(lines) + "\n")
