-- What a browser calls itself, so that a person knows which one to let out.
ALTER TABLE session ADD COLUMN agent TEXT NOT NULL DEFAULT '';
