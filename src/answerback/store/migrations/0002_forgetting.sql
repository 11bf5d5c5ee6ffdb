-- Retention may take the result of a call nothing is left to do for; what is open keeps the promise to the byte.

DROP TRIGGER calls_outcome_is_final;

CREATE TRIGGER calls_outcome_is_final BEFORE UPDATE OF outcome ON calls
WHEN old.outcome IS NOT NULL AND new.outcome IS NOT old.outcome AND (new.outcome IS NOT NULL OR old.open = 1) BEGIN
    SELECT RAISE(ABORT, 'an outcome is never changed');
END;
