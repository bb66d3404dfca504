"use strict";

startTables();
startForests();
const RENEW = [startFigures(), startRuns(), startDifference()];
if (typeof startLive === "function") startLive(RENEW);
// Tests and benchmarks wait for this attribute.
document.documentElement.dataset.ready = "";
