/** The name that a misspelled one means. */

/** The one that differs in the fewest letters, by at most a third of them; undefined: none is near. */
export function nearest(word: string, names: readonly string[]): string | undefined {
  const found = names
    .map((name) => ({ name, distance: distanceOf(word, name) }))
    .sort((a, b) => a.distance - b.distance);
  const [first] = found;
  return first !== undefined && first.distance <= Math.max(1, Math.floor(word.length / 3)) ? first.name : undefined;
}

/** Letters to insert, delete, replace, or swap with their neighbour. */
function distanceOf(a: string, b: string): number {
  const rows = [Array.from({ length: b.length + 1 }, (_, at) => at)];
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const replaced = rows[i - 1]![j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      const isSwap = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      const swapped = isSwap ? rows[i - 2]![j - 2]! + 1 : replaced;
      row.push(Math.min(rows[i - 1]![j]! + 1, row[j - 1]! + 1, replaced, swapped));
    }
    rows.push(row);
  }
  return rows[a.length]![b.length]!;
}
