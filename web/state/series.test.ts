import assert from "node:assert/strict";
import { test } from "node:test";
import { columnsOf, placesOf } from "./series.ts";

const point = (at: number, used: number | null = at) => ({ at, used });
const read = [({ used }: { used: number | null }) => used];

test("points become columns in the order of their times, each time once", () => {
  const { times, lines, gaps } = columnsOf([point(20), point(10), point(20, 7), point(30, null)], 10, read);
  assert.deepEqual(times, [10, 20, 30]);
  assert.deepEqual(lines, [[10, 20, null]]);
  assert.deepEqual(gaps, []);
});

test("a line breaks where no point was made for more than three steps", () => {
  const { times, lines, gaps } = columnsOf([point(10), point(40), point(80)], 10, read);
  assert.deepEqual(times, [10, 40, 60, 80]);
  assert.deepEqual(lines, [[10, 40, null, 80]]);
  assert.deepEqual(gaps, [{ from: 40, to: 80 }]);
});

test("a table has the newest point first, at most its number of rows, and none of a gap", () => {
  const points = Array.from({ length: 100 }, (_, index) => point(index * 10));
  const columns = columnsOf([...points, point(2_000)], 10, read);
  const places = placesOf(columns, 10);
  assert.ok(places.length <= 10);
  assert.equal(columns.times[places[0]!], 2_000);
  assert.ok(places.every((place) => columns.lines[0]![place] !== null));
  assert.deepEqual(placesOf(columnsOf([point(10, null)], 10, read), 10), []);
});
