/** What the charts use of Observable Plot, and no more: it is loaded with the first chart. */

export { areaY, barX, barY, dot, line, plot, ruleX, ruleY, text } from "@observablehq/plot";
