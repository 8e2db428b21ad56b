"""Results of questions: named, typed columns, from which every view, table and store is made."""
