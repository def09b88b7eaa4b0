-- Whether the origin of the evidence is proven. Earlier versions leave it empty: their verdicts are claims.
ALTER TABLE bodies ADD COLUMN proven boolean;
-- The body whose verdict is proven. An earlier version that writes another body leaves this one, and so proves nothing.
ALTER TABLE nodes ADD COLUMN proven_body bigint;
